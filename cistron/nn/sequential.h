#pragma once
// Operations run one after the other on the rows of one routing:
//
//   nn::Sequential mlp{nn::Gather{}, nn::GroupedLinear{{.experts = 8, .in = 256, .out = 512}}, nn::ScaledSwiGlu{},
//                      nn::GroupedLinear{{.experts = 8, .in = 256, .out = 256}}, nn::Combine{}};
//
// `plan` says which runs of operations a fusion would take and why the rest are not; the table is empty so far, and `forward`
// runs every operation by itself.
#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "cistron/nn/operation.h"

namespace cistron::nn {

/// An entry of the fuser's table: a pattern of operations, a predicate, and (in the file that adds it) the fused operation.
struct Fusion {
  std::string name;
  std::vector<OperationKind> pattern;
  /// Empty where the fusion applies; otherwise which condition refused it.
  std::function<std::string(const Context& ctx, std::span<const std::unique_ptr<Operation>> operations)> refusal;
  std::function<std::unique_ptr<Operation>(std::span<const std::unique_ptr<Operation>> operations)> make;
};

/// The fusions of this build, first match wins.
std::span<const Fusion> fusion_table();

class Sequential {
 public:
  template <class... Ops>
    requires(std::derived_from<Ops, Operation> && ...)
  explicit Sequential(Ops... operations) {
    (operations_.push_back(std::make_unique<Ops>(std::move(operations))), ...);
  }

  Tensor forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const;

  struct Gradients {
    Tensor dx;
    Tensor dweights;  // [T, k] f32, gradient of the routing weights; undefined where no operation uses them
  };
  Gradients backward(Context& ctx, const Tensor& dy, Saved& saved) const;

  /// A line for each operation, and for each fusion that matched: taken, or what refused it.
  [[nodiscard]] std::string plan(const Context& ctx, std::span<const Fusion> table = fusion_table()) const;
  [[nodiscard]] std::vector<const Parameter*> parameters() const;

 private:
  std::vector<std::unique_ptr<Operation>> operations_;
};

}  // namespace cistron::nn
