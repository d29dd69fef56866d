#include "cistron/ops/dispatch.h"
#include "cistron/ops/mxfp8_grouped_swiglu.h"

namespace cistron::cuda {
void mxfp8_grouped_swiglu_forward(Context& ctx, const ops::Mxfp8GroupedSwigluForward&) {
  ops::throw_no_backend("mxfp8_grouped_swiglu_forward", ctx.device);
}
void mxfp8_grouped_swiglu_backward(Context& ctx, const ops::Mxfp8GroupedSwigluBackward&) {
  ops::throw_no_backend("mxfp8_grouped_swiglu_backward", ctx.device);
}
std::string mxfp8_grouped_swiglu_refusal(const Context&) { return "CUDA has no kernels for it"; }
}  // namespace cistron::cuda
