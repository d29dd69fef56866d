#pragma once
// `ops/grouped_swiglu.h` on Hopper (sm_90a), bf16: one launch for all experts and the activation, groups read on the device
// alone. Segments start at multiples of 128 rows; pad rows of x and dy may hold anything. Widths are multiples of 8.
#include "cistron/ops/grouped_swiglu.h"

namespace cistron::cuda::sm90 {
void grouped_swiglu_forward(Context& ctx, const ops::GroupedSwigluForward& args);
/// Leaves dweight in `args.partials`, to be summed over its tiles of columns.
void grouped_swiglu_backward(Context& ctx, const ops::GroupedSwigluBackward& args);
}  // namespace cistron::cuda::sm90
