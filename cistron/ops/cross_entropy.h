#pragma once
// The head's product and the cross-entropy in one, by chunks of rows, so that [T, V] is never stored whole.
//   logits[t, :] = x[t, :] w^T (f32);  nll[t] = logsumexp(logits[t, :]) - logits[t, labels[t]]
//   loss = sum over t of loss_weight[t] nll[t];  rows with labels[t] < 0 count nothing
// With `dx` defined, the gradients of scale x loss come in the same pass: dlogits = scale loss_weight (softmax - onehot),
// dx = dlogits w, dw += dlogits^T x. The loss itself stays unscaled. A label of V or more throws and names its position; on a
// card, where the host does not see labels, it makes its nll and its row's gradients NaN, so that loss and gradient norm are not
// finite, the optimizer does nothing and the run stops.
#include "cistron/core/context.h"
#include "cistron/core/step_state.h"

namespace cistron::ops {

struct LinearCrossEntropy {
  const Tensor& x;                   // [T, H]
  const Tensor& w;                   // [V, H], x's dtype
  const Tensor& labels;              // [T] i32, -1: none
  const Tensor& loss_weight;         // [T] f32
  const Tensor& nll;                 // [T] f32, written; 0 where there is no label
  const Tensor& loss;                // [1] f64: added to, in a fixed order
  const StepState* state = nullptr;  // its loss_scale is the scale; on the device; null: forward only
  Tensor dx = {};                    // [T, H], written; undefined: forward only
  GradSink dw = {};                  // [V, H] f32
  // The operation's own scratch; callers leave it undefined.
  Tensor logits = {};     // a chunk of rows by V (on a card: by V rounded up to a multiple of 8), f32
  Tensor dlogits = {};    // the same in x's dtype
  Tensor workspace = {};  // of the products (ops/matmul.h)
};
void linear_cross_entropy(Context& ctx, const LinearCrossEntropy& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void linear_cross_entropy(Context& ctx, const ops::LinearCrossEntropy& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void linear_cross_entropy(Context& ctx, const ops::LinearCrossEntropy& args);
}  // namespace cistron::cuda
