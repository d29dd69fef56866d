#pragma once
#include "cistron/ops/groups.h"

namespace cistron::cpu {

/// The end of the last segment, pad rows included.
inline int64_t used_rows(const ops::Groups& groups) { return groups.starts.data<int32_t>()[groups.num_experts()]; }

}  // namespace cistron::cpu
