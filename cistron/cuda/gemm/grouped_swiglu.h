#pragma once
// What ends the backward of the products beside SwiGLU, in bf16 and in MXFP8, and of biases that the routing weights scale.
#include "cistron/ops/groups.h"

namespace cistron::cuda {
/// dweight[r] = (or +=) the sum over c of partials[c, r], in their order; zeros in pad rows.
void sum_partials(Context& ctx, const Tensor& partials, const ops::Groups& groups, const Tensor& dweight,
                  bool accumulate = false);
}  // namespace cistron::cuda
