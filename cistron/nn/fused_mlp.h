#pragma once
// The fuser's first entry: Gather -> GroupedLinear -> ScaledSwiGlu -> GroupedLinear -> Combine as one operation, forward and
// backward (`ops/grouped_swiglu.h`). It keeps the layer's input [T, H] and the first product [P, 2F], and nothing else: rows in
// expert order and the activation are made again in backward.
#include "cistron/nn/sequential.h"

namespace cistron::nn {

class FusedMlp final : public RoutedOperation {
 public:
  /// The two grouped linears, H to 2F and F to H; both must outlive it.
  FusedMlp(const GroupedLinear& gate_up, const GroupedLinear& down) : gate_up_(&gate_up), down_(&down) {}

  Tensor forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const override;
  Tensor backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved, Tensor& drow_weight) const override;
  [[nodiscard]] OperationKind kind() const override { return OperationKind::kFused; }
  [[nodiscard]] std::string describe() const override;

 private:
  [[nodiscard]] int64_t hidden() const { return down_->weight().shape[1]; }
  [[nodiscard]] int64_t intermediate() const { return down_->weight().shape[2]; }
  Tensor down_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const ops::Groups& groups,
                       Tensor& drow_weight) const;

  const GroupedLinear* gate_up_;
  const GroupedLinear* down_;
};

/// Its entry in the table.
Fusion fused_mlp();

/// Its pattern, for the same in other precisions; the linears are at places 1 and 3.
std::vector<OperationKind> expert_mlp_pattern();
const GroupedLinear& linear_at(MatchedOperations operations, size_t place);
/// Empty where the two linears are those of one MLP.
std::string not_one_mlp(const GroupedLinear& gate_up, const GroupedLinear& down);
/// "8 x 4096 -> 14336 -> 4096 with biases"
std::string describe_mlp(const GroupedLinear& gate_up, const GroupedLinear& down);

}  // namespace cistron::nn
