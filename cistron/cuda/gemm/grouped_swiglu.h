#pragma once
// What ends the backward of the products beside SwiGLU, in bf16 and in MXFP8, and of biases that the routing weights scale.
#include "cistron/ops/groups.h"

namespace cistron::cuda {
/// dweight[r] = (or +=) the sum over c of partials[c, r], in their order; zeros in pad rows. A row's columns are spread over
/// tiles, whose blocks end in any order: each leaves its part, since atomics would not repeat.
void sum_partials(Context& ctx, const Tensor& partials, const ops::Groups& groups, const Tensor& dweight,
                  bool accumulate = false);
}  // namespace cistron::cuda
