#pragma once
// The fused MLP (nn/fused_mlp.h) in MXFP8, scale groups of 128: Gather -> GroupedLinear -> ScaledSwiGlu -> GroupedLinear ->
// Combine as one operation, forward and backward (`ops/mxfp8_grouped_swiglu.h`). The gather is the quantiser's. Numbers are those
// of the operations one by one, but for the order in which the routing weights' gradients are summed. It keeps the layer's input
// [T, H] and the first product [P, 2F], both bf16, and nothing else: k copies of a token in MXFP8 are no less than one in bf16
// from top-2 on.
#include "cistron/nn/sequential.h"

namespace cistron::nn {

class FusedMxMlp final : public RoutedOperation {
 public:
  /// The two grouped linears, H to 2F in two sections and F to H; both must outlive it.
  FusedMxMlp(const GroupedLinear& gate_up, const GroupedLinear& down) : gate_up_(&gate_up), down_(&down) {}

  Tensor forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const override;
  Tensor backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved, Tensor& drow_weight) const override;
  [[nodiscard]] OperationKind kind() const override { return OperationKind::kFused; }
  [[nodiscard]] std::string describe() const override;

 private:
  [[nodiscard]] int64_t hidden() const { return down_->weight().shape[1]; }
  [[nodiscard]] int64_t intermediate() const { return down_->weight().shape[2]; }
  /// Gives d(gate, up) in both copies; the gradients of both biases and of the down projection go to their sinks.
  MxTensor down_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const ops::Groups& groups,
                         Tensor& drow_weight) const;

  const GroupedLinear* gate_up_;
  const GroupedLinear* down_;
};

/// Its entry in the table.
Fusion fused_mx_mlp();

}  // namespace cistron::nn
