#include "cistron/ops/grouped_swiglu.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {
void grouped_swiglu_forward(Context& ctx, const ops::GroupedSwigluForward& /*args*/) {
  ops::throw_no_backend("grouped_swiglu_forward", ctx.device);
}
void grouped_swiglu_backward(Context& ctx, const ops::GroupedSwigluBackward& /*args*/) {
  ops::throw_no_backend("grouped_swiglu_backward", ctx.device);
}
std::string grouped_swiglu_refusal(const Context& /*ctx*/, int64_t /*hidden*/, int64_t /*intermediate*/) {
  return "this build has no CUDA";
}
}  // namespace cistron::cuda
