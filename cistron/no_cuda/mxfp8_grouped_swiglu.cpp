#include "cistron/ops/mxfp8_grouped_swiglu.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {
void mxfp8_grouped_swiglu_forward(Context& ctx, const ops::Mxfp8GroupedSwigluForward& /*args*/) {
  ops::throw_no_backend("mxfp8_grouped_swiglu_forward", ctx.device);
}
void mxfp8_grouped_swiglu_backward(Context& ctx, const ops::Mxfp8GroupedSwigluBackward& /*args*/) {
  ops::throw_no_backend("mxfp8_grouped_swiglu_backward", ctx.device);
}
std::string mxfp8_grouped_swiglu_refusal(const Context& /*ctx*/) { return "this build has no CUDA"; }
}  // namespace cistron::cuda
