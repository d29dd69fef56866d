#pragma once
#include "cistron/ops/mxfp8_grouped_swiglu.h"

namespace cistron::cuda::sm90 {
/// What follows the product in the backward: from `args.d`, gate and up everything but dweight, whose parts by 128 columns go to
/// `args.partials`.
void mxfp8_swiglu_backward(Context& ctx, const ops::Mxfp8GroupedSwigluBackward& args);
}  // namespace cistron::cuda::sm90
