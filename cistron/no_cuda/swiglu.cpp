#include "cistron/ops/swiglu.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void scaled_swiglu_forward(Context& ctx, const ops::ScaledSwigluForward&) {
  ops::throw_no_backend("scaled_swiglu_forward", ctx.device);
}
void scaled_swiglu_backward(Context& ctx, const ops::ScaledSwigluBackward&) {
  ops::throw_no_backend("scaled_swiglu_backward", ctx.device);
}

}  // namespace cistron::cuda
