#pragma once
// The steps that a `Sequential` holds, and what flows through them. Those of an expert MLP work on the rows of one routing
// (`Groups`); those of the residual stream are in nn/residual.h and nn/rms_norm.h.
#include <string>
#include <vector>

#include "cistron/nn/saved.h"
#include "cistron/ops/grouped_bias.h"

namespace cistron::nn {

/// What an operation is, for the fuser's patterns.
enum class OperationKind : uint8_t { kGather, kGroupedLinear, kScaledSwiGlu, kCombine, kResidual, kRmsNorm, kQuantize, kFused };

/// The rows of a branch, and beside them the residual stream that it left and comes back to. In backward, their gradients.
struct Flow {
  Tensor x = {};                        // the branch; undefined where it is quantised, or has not begun
  Tensor stream = {};                   // [T, H]; undefined inside a branch that knows of none
  MxTensor mx = {};                     // the branch as the next product contracts it
  const ops::Groups* groups = nullptr;  // the routing that experts work by
  Tensor row_weight = {};               // backward: [R] f32, the gradient of the routing weights
};

class Operation {
 public:
  virtual ~Operation() = default;
  virtual void run(Context& ctx, Flow& flow, Saved& saved) const = 0;
  virtual void run_back(Context& ctx, Flow& gradient, Saved& saved) const = 0;

  [[nodiscard]] virtual OperationKind kind() const = 0;
  /// "GroupedLinear 8 x 4096 -> 28672"
  [[nodiscard]] virtual std::string describe() const = 0;
  [[nodiscard]] virtual std::vector<const Parameter*> parameters() const { return {}; }
};

/// On the rows of one routing.
class RoutedOperation : public Operation {
 public:
  virtual Tensor forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const = 0;
  /// Gives dx. An operation that uses the routing weights sets `drow_weight` [R] f32, their gradient; where a later operation of
  /// the forward pass has set it already, it adds to it.
  virtual Tensor backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved, Tensor& drow_weight) const = 0;

  void run(Context& ctx, Flow& flow, Saved& saved) const final { flow.x = forward(ctx, flow.x, *flow.groups, saved); }
  void run_back(Context& ctx, Flow& gradient, Saved& saved) const final {
    gradient.x = backward(ctx, gradient.x, *gradient.groups, saved, gradient.row_weight);
  }
};

/// Token order to expert order: [T, H] -> [R, H].
class Gather final : public RoutedOperation {
 public:
  Tensor forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const override;
  Tensor backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved, Tensor& drow_weight) const override;
  [[nodiscard]] OperationKind kind() const override { return OperationKind::kGather; }
  [[nodiscard]] std::string describe() const override { return "Gather"; }
};

/// Expert order to token order, summing a token's k rows: [R, H] -> [T, H].
class Combine final : public RoutedOperation {
 public:
  Tensor forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const override;
  Tensor backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved, Tensor& drow_weight) const override;
  [[nodiscard]] OperationKind kind() const override { return OperationKind::kCombine; }
  [[nodiscard]] std::string describe() const override { return "Combine"; }
};

/// What a GroupedLinear adds to its rows: nothing, its expert's bias [out], or that times the row's routing weight, which belongs
/// behind a ScaledSwiGlu: a token's sum over its experts of weight (w h + bias).
enum class Bias : uint8_t { kNone, kPlain, kScaled };

/// The linear layers of all experts in one launch: [R, in] -> [R, out], weights [E, out, in], biases [E, out] in fp32 whatever
/// the recipe.
class GroupedLinear final : public RoutedOperation {
 public:
  struct Options {
    int64_t experts = 0;
    int64_t in = 0;
    int64_t out = 0;
    std::string name = "grouped_linear";
    float init_std = 0.02F;
    int64_t mx_sections = 1;  // as Parameter::mx_sections; 0: in bf16 whatever the recipe
    int64_t begin = 0;        // this rank holds experts [begin, begin + count)
    int64_t count = -1;       // -1: all of them
    Bias bias = Bias::kNone;  // the parameter `name`.bias, which starts at zero
  };
  explicit GroupedLinear(const Options& options);

  Tensor forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const override;
  Tensor backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved, Tensor& drow_weight) const override;
  [[nodiscard]] OperationKind kind() const override { return OperationKind::kGroupedLinear; }
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::vector<const Parameter*> parameters() const override;
  [[nodiscard]] const Parameter& weight() const { return weight_; }

  /// For operations that take this one's place.
  [[nodiscard]] Bias bias() const { return bias_kind_; }
  [[nodiscard]] const Parameter* bias_parameter() const { return bias_kind_ == Bias::kNone ? nullptr : &bias_; }
  /// The bias as the products add it.
  [[nodiscard]] ops::ExpertBias lease_bias(const Context& ctx) const;
  /// Its gradient to its sink and, where it is scaled, the routing weights' to `drow_weight`, as in `backward`; nothing where
  /// there is none. `by_token`: dy is in token order (`ops::GroupedBiasBackward`).
  void bias_backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Tensor& drow_weight, bool by_token = false) const;

 private:
  Parameter weight_;
  Bias bias_kind_;
  Parameter bias_;  // where there is one
};

/// silu(gate) * up * routing weight: [R, 2F] -> [R, F], gate first.
class ScaledSwiGlu final : public RoutedOperation {
 public:
  Tensor forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const override;
  Tensor backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved, Tensor& drow_weight) const override;
  [[nodiscard]] OperationKind kind() const override { return OperationKind::kScaledSwiGlu; }
  [[nodiscard]] std::string describe() const override { return "ScaledSwiGlu"; }
};

}  // namespace cistron::nn
