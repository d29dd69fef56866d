#pragma once
#include "cistron/nn/operation.h"

namespace cistron::nn {

/// A branch comes back: stream = stream + x. Nothing where there is none: at the model's first norm, and where a norm is computed
/// again from its stream. Both summands' gradient is the sum's.
class Residual final : public Operation {
 public:
  void run(Context& ctx, Flow& flow, Saved& saved) const override;
  void run_back(Context& ctx, Flow& gradient, Saved& saved) const override;
  [[nodiscard]] OperationKind kind() const override { return OperationKind::kResidual; }
  [[nodiscard]] std::string describe() const override { return "Residual"; }
};

/// x in both MXFP8 copies, for a linear layer that takes it so (nn/linear.h). With scale groups of 32, whose wgrad reads the bf16
/// values, and in other recipes x goes on as it is.
class Quantize final : public Operation {
 public:
  void run(Context& ctx, Flow& flow, Saved& saved) const override;
  void run_back(Context& ctx, Flow& gradient, Saved& saved) const override;
  [[nodiscard]] OperationKind kind() const override { return OperationKind::kQuantize; }
  [[nodiscard]] std::string describe() const override { return "Quantize"; }
  static constexpr int64_t kGroup = 128;
  /// Empty where it would.
  static std::string refusal(const Context& ctx);
};

}  // namespace cistron::nn
