#pragma once
#include <optional>
#include <string>

#include "cistron/dist/expert_exchange.h"
#include "cistron/nn/expert_loop.h"
#include "cistron/nn/router.h"
#include "cistron/nn/sequential.h"

namespace cistron::nn {

/// A mixture of SwiGLU experts: router, then the experts by one grouped product each or (the baseline) by a loop over experts.
/// Where the context's mesh spreads the experts over ranks, each rank routes its own tokens, and the experts here work on the
/// tokens of all ranks that chose them (dist/expert_exchange.h).
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
    bool mxfp8 = true;                // the experts, where the recipe says so
    std::optional<dist::Range> held;  // the experts on this rank: those of dist::experts_of; none given: all of them
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
  /// Of the experts: Sequential::plan, or that they run one after the other.
  [[nodiscard]] std::string plan(const Context& ctx) const;
  /// Why the experts would run unfused; empty where they don't.
  [[nodiscard]] std::string unfused(const Context& ctx) const;

 private:
  [[nodiscard]] bool is_spread(const Context& ctx) const;
  [[nodiscard]] ops::Groups groups_of(Context& ctx, const Router::Routing& routing, const dist::ExpertRoom& room) const;
  Tensor experts_forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const;
  [[nodiscard]] Sequential::Gradients experts_backward(Context& ctx, const Tensor& dy, Saved& saved) const;
  Tensor forward_spread(Context& ctx, const Tensor& x, const Router::Routing& routing, Saved& saved) const;
  Sequential::Gradients backward_spread(Context& ctx, const Tensor& dy, Saved& saved) const;

  Options options_;
  Router router_;
  Sequential grouped_;  // owns the parameters
  ExpertLoop loop_;     // reads the same ones
};

}  // namespace cistron::nn
