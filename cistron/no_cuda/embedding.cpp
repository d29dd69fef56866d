#include "cistron/ops/embedding.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void embedding_forward(Context& ctx, const ops::EmbeddingForward&) { ops::throw_no_backend("embedding_forward", ctx.device); }
void embedding_backward(Context& ctx, const ops::EmbeddingBackward&) { ops::throw_no_backend("embedding_backward", ctx.device); }

}  // namespace cistron::cuda
