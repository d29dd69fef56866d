#pragma once
#include <string>

#include "cistron/nn/saved.h"
#include "cistron/ops/router.h"

namespace cistron::nn {

/// Which experts a token goes to, and with what weight. All of it in fp32. See ops/router.h for the mathematics.
class Router {
 public:
  struct Options {
    std::string name;
    int64_t hidden = 0;
    int64_t experts = 0;
    int64_t top_k = 0;
    float init_std = 0.02F;
  };
  explicit Router(const Options& options);

  struct Routing {
    Tensor experts;  // [T, k] i32
    Tensor weights;  // [T, k] f32
  };
  /// `stats` [2E + 3] f64 is added to where it is defined. With `replay` [T, k] defined, those experts are taken.
  Routing forward(Context& ctx, const Tensor& x, Saved& saved, const Tensor& stats, const Tensor& replay) const;

  /// The gradients of the auxiliary losses are those of `aux x balance + z x z-loss` over the routings in `stats`.
  struct AuxLosses {
    Tensor stats;  // [2E + 3] f64 of the micro-batch (all layers)
    float balance = 0.0F;
    float z = 0.0F;
  };
  /// Adds to `dx` [T, H] what comes through the logits; `dweights` [T, k] f32 is the gradient of the routing weights.
  void backward(Context& ctx, const Tensor& dweights, const AuxLosses& aux, Saved& saved, const Tensor& dx) const;

  [[nodiscard]] const Parameter& weight() const { return weight_; }

 private:
  Options options_;
  Parameter weight_;  // [E, H] f32
};

}  // namespace cistron::nn
