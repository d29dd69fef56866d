#include "cistron/ops/groups.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void build_groups(Context& ctx, const ops::BuildGroups&) { ops::throw_no_backend("build_groups", ctx.device); }

}  // namespace cistron::cuda
