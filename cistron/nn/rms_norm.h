#pragma once
#include <string>

#include "cistron/nn/saved.h"

namespace cistron::nn {

/// y = x / rms(x) * w, by row; w in fp32 whatever the recipe.
class RmsNorm {
 public:
  struct Options {
    std::string name;
    int64_t hidden = 0;
    float eps = 1e-5F;
  };
  explicit RmsNorm(const Options& options);

  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  /// The same of x = a + b, the residual's sum, in one pass over both.
  struct Sum {
    Tensor x, y;
  };
  Sum forward_sum(Context& ctx, const Tensor& a, const Tensor& b, Saved& saved) const;
  /// Adds the gradient of x to `dx`, where the residual branch's already is.
  void backward(Context& ctx, const Tensor& dy, Saved& saved, const Tensor& dx, bool accumulate_dx = true) const;

  [[nodiscard]] const Parameter& weight() const { return weight_; }

 private:
  void save(Context& ctx, const Tensor& x, const Tensor& y, const Tensor& rstd, Saved& saved) const;

  Parameter weight_;  // [H]
  float eps_;
};

}  // namespace cistron::nn
