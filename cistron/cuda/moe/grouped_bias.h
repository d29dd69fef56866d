#pragma once
#include "cistron/ops/grouped_bias.h"

namespace cistron::cuda {

/// y[r, :] += s[r] bias[e], in place: for products that don't add it themselves, whose sum is so rounded twice.
void add_grouped_bias(Context& ctx, const ops::ExpertBias& bias, const ops::Groups& groups, const Tensor& y);

}  // namespace cistron::cuda
