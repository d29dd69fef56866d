#pragma once
// The fuser's entries for the residual stream, forward and backward:
//   Residual -> RmsNorm               the sum and its norm in one pass; backward adds to the stream's gradient as it goes
//   Residual -> RmsNorm -> Quantize   the sum and its rstd in one pass, and the norm is the quantiser's: nobody writes it in bf16
// Sum, norm and bytes are those of the operations one by one. In bf16 the stream's gradient is rounded once, not twice.
#include "cistron/nn/sequential.h"

namespace cistron::nn {

class RmsNorm;

class FusedNorm final : public Operation {
 public:
  /// The norm must outlive it.
  FusedNorm(const RmsNorm& norm, bool quantizes) : norm_(&norm), quantizes_(quantizes) {}

  void run(Context& ctx, Flow& flow, Saved& saved) const override;
  void run_back(Context& ctx, Flow& gradient, Saved& saved) const override;
  [[nodiscard]] OperationKind kind() const override { return OperationKind::kFused; }
  [[nodiscard]] std::string describe() const override;

 private:
  const RmsNorm* norm_;
  bool quantizes_;
};

/// Their entries in the table, the longer one first.
Fusion fused_norm_quantize();
Fusion fused_norm();

}  // namespace cistron::nn
