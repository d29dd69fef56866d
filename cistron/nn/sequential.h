#pragma once
// Operations run one after the other:
//
//   nn::Sequential norm{nn::Residual{}, nn::RmsNorm{{.name = "norm", .hidden = 256}}};
//   nn::Sequential mlp{nn::Gather{}, nn::GroupedLinear{{.experts = 8, .in = 256, .out = 512}}, nn::ScaledSwiGlu{},
//                      nn::GroupedLinear{{.experts = 8, .in = 256, .out = 256}}, nn::Combine{}};
//
// Where a run of operations matches an entry of the fuser's table and the entry's predicate lets it, the fused operation runs in
// their place, forward and backward. `plan` says which, and what refused the rest.
#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "cistron/nn/operation.h"

namespace cistron::nn {

/// The operations of a Sequential that a fusion's pattern fits.
using MatchedOperations = std::span<const std::unique_ptr<Operation>>;

/// An entry of the fuser's table: a pattern of operations, a predicate, and (in the file that adds it) the fused operation.
struct Fusion {
  std::string name;
  std::vector<OperationKind> pattern;
  /// Empty where the fusion applies; otherwise which condition refused it.
  std::function<std::string(const Context& ctx, MatchedOperations operations)> refusal;
  std::function<std::unique_ptr<Operation>(MatchedOperations operations)> make;
};

/// The fusions of this build, first match wins.
std::span<const Fusion> fusion_table();

class Sequential {
 public:
  template <class... Ops>
    requires(std::derived_from<Ops, Operation> && ...)
  explicit Sequential(Ops... operations) {
    (operations_.push_back(std::make_unique<Ops>(std::move(operations))), ...);
    match(fusion_table());
  }
  /// Finds where the table's patterns fit.
  void match(std::span<const Fusion> table);

  void run(Context& ctx, Flow& flow, Saved& saved) const;
  void run_back(Context& ctx, Flow& gradient, Saved& saved) const;

  /// Of experts, which work by one routing.
  Tensor forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const;
  struct Gradients {
    Tensor dx;
    Tensor dweights;  // [T, k] f32, gradient of the routing weights; undefined where no operation uses them
  };
  Gradients backward(Context& ctx, const Tensor& dy, Saved& saved) const;

  /// A line for each operation that runs, and for each fusion that matched: taken, or what refused it.
  [[nodiscard]] std::string plan(const Context& ctx) const;
  /// What refused each fusion of operations that no other fusion took together: "fused MLP: not fused, ...". Empty where all
  /// that can be fused is.
  [[nodiscard]] std::vector<std::string> refusals(const Context& ctx) const;
  [[nodiscard]] std::vector<const Parameter*> parameters() const;

 private:
  /// A place where a fusion's pattern fits.
  struct Match {
    size_t begin, end;
    std::string name;
    std::function<std::string(const Context& ctx)> refusal;
    std::unique_ptr<Operation> fused;
  };
  /// What runs at places [begin, end).
  struct Step {
    size_t begin, end;
    const Operation* operation;
  };
  [[nodiscard]] std::vector<Step> steps(const Context& ctx) const;
  [[nodiscard]] std::string refusal(const Context& ctx, const Match& match) const;

  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Match> matches_;  // by begin, and there as the table has them
};

}  // namespace cistron::nn
