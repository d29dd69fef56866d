#pragma once
// The forward of `ops/mxfp8_grouped_swiglu.h` on Hopper (sm_90a): one launch for all experts, the activation and its quantiser,
// groups read on the device alone. Segments start at multiples of 128 rows; pad rows of x may hold anything.
#include "cistron/ops/mxfp8_grouped_swiglu.h"

namespace cistron::cuda::sm90 {
void mxfp8_grouped_swiglu_forward(Context& ctx, const ops::Mxfp8GroupedSwigluForward& args);
}  // namespace cistron::cuda::sm90
