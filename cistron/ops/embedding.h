#pragma once
// Rows of a table by token. forward: y[t, :] = table[tokens[t], :].  backward: dtable[v, :] = sum over t with tokens[t] = v of
// dy[t, :], in f32 and in the order of t. A token outside [0, V) throws and names its position.
#include "cistron/core/context.h"

namespace cistron::ops {

struct EmbeddingForward {
  const Tensor& table;   // [V, H]
  const Tensor& tokens;  // [T] i32
  const Tensor& out;     // [T, H], table's dtype
};
void embedding_forward(Context& ctx, const EmbeddingForward& args);

struct EmbeddingBackward {
  const Tensor& dy;      // [T, H]
  const Tensor& tokens;  // [T] i32
  GradSink dtable;       // [V, H] f32
};
void embedding_backward(Context& ctx, const EmbeddingBackward& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void embedding_forward(Context& ctx, const ops::EmbeddingForward& args);
void embedding_backward(Context& ctx, const ops::EmbeddingBackward& args);
}  // namespace cistron::cpu
