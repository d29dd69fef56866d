#pragma once
#include <string>

#include "cistron/nn/operation.h"

namespace cistron::nn {

/// A branch begins: x = stream / rms(stream) * w, by row; w in fp32 whatever the recipe.
class RmsNorm final : public Operation {
 public:
  struct Options {
    std::string name;
    int64_t hidden = 0;
    float eps = 1e-5F;
  };
  explicit RmsNorm(const Options& options);

  void run(Context& ctx, Flow& flow, Saved& saved) const override;
  /// Adds to the stream's gradient; where there is none yet, gives it.
  void run_back(Context& ctx, Flow& gradient, Saved& saved) const override;
  [[nodiscard]] OperationKind kind() const override { return OperationKind::kRmsNorm; }
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::vector<const Parameter*> parameters() const override { return {&weight_}; }

  [[nodiscard]] const Parameter& weight() const { return weight_; }
  [[nodiscard]] float eps() const { return eps_; }

 private:
  Parameter weight_;  // [H]
  float eps_;
};

/// What the norm with this weight keeps of its input, and its backward pass: dx (+)= the gradient of that.
void save_norm(const Tensor& x, const Tensor& rstd, Saved& saved);
void norm_backward(Context& ctx, const Parameter& weight, const Tensor& dy, Saved& saved, const Tensor& dx, bool accumulate);

}  // namespace cistron::nn
