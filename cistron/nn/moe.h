#pragma once
#include <string>

#include "cistron/nn/expert_loop.h"
#include "cistron/nn/router.h"
#include "cistron/nn/sequential.h"

namespace cistron::nn {

/// A mixture of SwiGLU experts: router, then the experts by one grouped product each or (the baseline) by a loop over experts.
class MoeBlock {
 public:
  struct Options {
    std::string name;
    int64_t hidden = 0;
    int64_t intermediate = 0;
    int64_t experts = 0;
    int64_t top_k = 0;
    bool loop = false;
    float init_std = 0.02F;
  };
  explicit MoeBlock(const Options& options);

  struct Output {
    Tensor y;        // [T, H]
    Tensor experts;  // [T, k] i32: what to replay when this is computed again
  };
  /// `stats` and `replay` as `Router::forward` has them.
  Output forward(Context& ctx, const Tensor& x, Saved& saved, const Tensor& stats, const Tensor& replay) const;
  Tensor backward(Context& ctx, const Tensor& dy, const Router::AuxLosses& aux, Saved& saved) const;

  [[nodiscard]] std::vector<const Parameter*> parameters() const;
  [[nodiscard]] const Sequential& experts() const { return grouped_; }

 private:
  Options options_;
  Router router_;
  Sequential grouped_;  // owns the parameters
  ExpertLoop loop_;     // reads the same ones
};

}  // namespace cistron::nn
