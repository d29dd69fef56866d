#pragma once
// Top-k routing as Mixtral does it, all in f32. With p[t, :] = softmax(logits[t, :]):
//   experts[t, :] = the k largest of p[t, :], largest first, ties to the lowest expert
//   weights[t, j] = p[t, experts[t, j]] / sum over j' of p[t, experts[t, j']]
//   lse[t] = log sum_e exp(logits[t, e])
// Losses beside the cross-entropy, over the N = layers x tokens routings of a batch ("rows"):
//   load balancing (Hugging Face's load_balancing_loss_func): E sum_e f_e P_e, f_e = choices of e / N, P_e = sum of p[., e] / N
//   z-loss (Zoph et al., "ST-MoE", 2022): sum of lse^2 / N
#include "cistron/core/context.h"

namespace cistron::ops {

struct RouterForward {
  const Tensor& logits;   // [T, E] f32
  const Tensor& probs;    // [T, E] f32, written; may alias logits
  const Tensor& lse;      // [T] f32, written
  const Tensor& experts;  // [T, k] i32, written, or read where `replay`
  const Tensor& weights;  // [T, k] f32, written
  bool replay = false;    // take the experts as given: recomputation never flips a choice
};
void router_forward(Context& ctx, const RouterForward& args);

/// Adds this layer's sums; the layout is [E] choices, [E] sums of p, sum of lse^2, sum of the entropy of p, routings.
struct RouterStats {
  const Tensor& probs;
  const Tensor& lse;
  const Tensor& experts;
  const Tensor& stats;  // [2E + 3] f64, added to
  Tensor partial = {};  // scratch of the operation's own on CUDA; callers leave it undefined
};
void router_stats(Context& ctx, const RouterStats& args);

struct RouterBackward {
  const Tensor& probs;           // [T, E]
  const Tensor& lse;             // [T]
  const Tensor& experts;         // [T, k]
  const Tensor& weights;         // [T, k]
  const Tensor& dweights;        // [T, k] f32: gradient of the weights (gather_choices of scaled_swiglu_backward's)
  const Tensor& stats;           // [2E + 3] f64 of the micro-batch that is differentiated (all layers, all ranks)
  float aux_coefficient = 0.0F;  // of the load-balancing loss in the objective
  float z_coefficient = 0.0F;
  const Tensor& dlogits;  // [T, E] f32
};
void router_backward(Context& ctx, const RouterBackward& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void router_forward(Context& ctx, const ops::RouterForward& args);
void router_stats(Context& ctx, const ops::RouterStats& args);
void router_backward(Context& ctx, const ops::RouterBackward& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void router_forward(Context& ctx, const ops::RouterForward& args);
void router_stats(Context& ctx, const ops::RouterStats& args);
void router_backward(Context& ctx, const ops::RouterBackward& args);
}  // namespace cistron::cuda
