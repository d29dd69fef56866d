#include "cistron/ops/attention.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void attention_forward(Context& ctx, const ops::AttentionForward&) { ops::throw_no_backend("attention_forward", ctx.device); }
void attention_backward(Context& ctx, const ops::AttentionBackward&) { ops::throw_no_backend("attention_backward", ctx.device); }

}  // namespace cistron::cuda
