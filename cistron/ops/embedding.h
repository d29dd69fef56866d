#pragma once
// Rows of a table by token. forward: y[t, :] = table[tokens[t], :].  backward: dtable[v, :] = sum over t with tokens[t] = v of
// dy[t, :], in f32 and in the order of t (on CUDA in pieces of that order). A token outside [0, V) throws and names its position;
// on CUDA, where the host doesn't read tokens, its y is NaN and its dy counts nothing.
#include "cistron/core/context.h"

namespace cistron::ops {

struct EmbeddingForward {
  const Tensor& table;   // [V, H]
  const Tensor& tokens;  // [T] i32
  const Tensor& out;     // [T, H], table's dtype
};
void embedding_forward(Context& ctx, const EmbeddingForward& args);

/// What the sum by token takes on CUDA.
struct EmbeddingScratch {
  static constexpr int kPiece = 32;  // positions that are summed in one go
  Tensor order;                      // [2, T] i32: positions sorted by token, and the pass before
  Tensor tile_counts;                // the sort's
  Tensor starts;                     // [V + 1] i32
  Tensor partial;                    // [pieces, 2, H] f32
};

struct EmbeddingBackward {
  const Tensor& dy;               // [T, H]
  const Tensor& tokens;           // [T] i32
  GradSink dtable;                // [V, H] f32
  EmbeddingScratch scratch = {};  // the operation's own; callers leave it undefined
};
void embedding_backward(Context& ctx, const EmbeddingBackward& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void embedding_forward(Context& ctx, const ops::EmbeddingForward& args);
void embedding_backward(Context& ctx, const ops::EmbeddingBackward& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void embedding_forward(Context& ctx, const ops::EmbeddingForward& args);
void embedding_backward(Context& ctx, const ops::EmbeddingBackward& args);
}  // namespace cistron::cuda
