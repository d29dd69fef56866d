#pragma once
// The experts one after the other, each by its own products: what Cistron is measured against. It reads the counts on the host,
// which on a card waits for it, forward and backward.
#include "cistron/nn/sequential.h"

namespace cistron::nn {

class ExpertLoop {
 public:
  /// The weights of the two grouped linears of an expert MLP, [E, 2F, H] and [E, H, F]; both must outlive the loop.
  ExpertLoop(const Parameter& gate_up, const Parameter& down) : gate_up_(&gate_up), down_(&down) {}

  Tensor forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const;
  Sequential::Gradients backward(Context& ctx, const Tensor& dy, Saved& saved) const;

 private:
  const Parameter* gate_up_;
  const Parameter* down_;
};

}  // namespace cistron::nn
