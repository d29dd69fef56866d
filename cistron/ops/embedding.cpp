#include "cistron/ops/embedding.h"

#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"
#include "cistron/ops/scratch.h"

namespace cistron::ops {

void embedding_forward(Context& ctx, const EmbeddingForward& args) {
  check_float("embedding_forward", "table", args.table, 2);
  check_tensor("embedding_forward", "tokens", args.tokens, {args.out.dim(0)}, DType::kI32);
  check_tensor("embedding_forward", "out", args.out, {args.out.dim(0), args.table.dim(1)}, args.table.dtype());
  dispatch("embedding_forward", ctx, args, cpu::embedding_forward, cuda::embedding_forward);
}

void embedding_backward(Context& ctx, const EmbeddingBackward& args) {
  check_float("embedding_backward", "dy", args.dy, 2);
  check_tensor("embedding_backward", "tokens", args.tokens, {args.dy.dim(0)}, DType::kI32);
  check_tensor("embedding_backward", "dtable", args.dtable.grad, {args.dtable.grad.dim(0), args.dy.dim(1)}, DType::kF32);
  const int64_t tokens = args.dy.dim(0), pieces = std::max<int64_t>(1, ceil_div(tokens, EmbeddingScratch::kPiece));
  EmbeddingBackward with_scratch = args;
  with_scratch.scratch = {.order = cuda_scratch(ctx, {2, tokens}, DType::kI32),
                          .tile_counts = cuda_scratch(ctx, {kSortTiles, kMaxSortBins}, DType::kI32),
                          .starts = cuda_scratch(ctx, {args.dtable.grad.dim(0) + 1}, DType::kI32),
                          .partial = cuda_scratch(ctx, {pieces, 2, args.dy.dim(1)}, DType::kF32)};
  dispatch("embedding_backward", ctx, with_scratch, cpu::embedding_backward, cuda::embedding_backward);
}

}  // namespace cistron::ops
