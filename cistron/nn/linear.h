#pragma once
#include <string>

#include "cistron/nn/saved.h"

namespace cistron::nn {

/// y [T, out] = x [T, in] w^T, w [out, in], in the activations' dtype, or in MXFP8.
class Linear {
 public:
  struct Options {
    std::string name;
    int64_t in = 0;
    int64_t out = 0;
    float init_std = 0.02F;
    bool mxfp8 = false;  // where the recipe says so
  };
  explicit Linear(const Options& options);

  /// Of rows, or of rows that are quantised already: both copies, for scale groups of 128.
  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  Tensor forward(Context& ctx, const MxTensor& x, Saved& saved) const;
  /// Gives dx; dw goes to its sink.
  Tensor backward(Context& ctx, const Tensor& dy, Saved& saved) const;

  [[nodiscard]] const Parameter& weight() const { return weight_; }

 private:
  Parameter weight_;  // [out, in]
};

}  // namespace cistron::nn
