#pragma once
// The three products of linear layers whose weights are in MXFP8, each on copies quantised from the bf16 values that it would
// take otherwise: y = x w^T and dx = dy w contract row-wise copies, dw = dy^T x column-wise ones. With scale groups of 32, dw
// runs in bf16. See docs/mxfp8.md.
#include "cistron/nn/saved.h"
#include "cistron/ops/grouped_bias.h"

namespace cistron::nn {

/// y [R, N] = x [R, K] w^T for the rows of each group; keeps what backward needs of x: the column-wise copy, or with groups of 32
/// x itself. Pad rows of x hold zeros. The bias, where there is one, is added before y is rounded.
Tensor mx_forward(Context& ctx, const Parameter& w, const Tensor& x, const ops::Groups& groups, Saved& saved,
                  const ops::ExpertBias& bias = {});
/// The same of an x that comes in both copies; scale groups of 128.
Tensor mx_forward(Context& ctx, const Parameter& w, const MxTensor& x, const ops::Groups& groups, Saved& saved,
                  const ops::ExpertBias& bias = {});
/// Gives dx; dw goes to its sink. Pad rows of dy hold zeros.
Tensor mx_backward(Context& ctx, const Parameter& w, const Tensor& dy, const ops::Groups& groups, Saved& saved);

}  // namespace cistron::nn
