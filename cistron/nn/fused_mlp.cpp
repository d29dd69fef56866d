#include "cistron/nn/fused_mlp.h"

#include "cistron/core/error.h"
#include "cistron/nn/routed_rows.h"
#include "cistron/ops/grouped_gemm.h"
#include "cistron/ops/grouped_swiglu.h"

namespace cistron::nn {

std::vector<OperationKind> expert_mlp_pattern() {
  using enum OperationKind;
  return {kGather, kGroupedLinear, kScaledSwiGlu, kGroupedLinear, kCombine};
}

const GroupedLinear& linear_at(MatchedOperations operations, size_t place) {
  return static_cast<const GroupedLinear&>(*operations[place]);  // by the pattern
}

std::string not_one_mlp(const GroupedLinear& gate_up, const GroupedLinear& down) {
  const Shape &first = gate_up.weight().shape, &second = down.weight().shape;
  if (first[1] != 2 * second[2] || first[2] != second[1])
    return fmt::format("gate and up {} and down {} are not those of one MLP", to_string(first), to_string(second));
  if (gate_up.bias() == Bias::kScaled) return "the routing weights scale the biases of gate and up, not those of down alone";
  return "";
}

std::string describe_mlp(const GroupedLinear& gate_up, const GroupedLinear& down) {
  const Shape& shape = down.weight().local_shape();
  const bool first = gate_up.bias() != Bias::kNone, second = down.bias() != Bias::kNone;
  const char* biases = first && second ? " with biases"
                       : first         ? " with biases of gate and up"
                       : second        ? " with biases of down"
                                       : "";
  return fmt::format("{} x {} -> {} -> {}{}", shape[0], shape[1], shape[2], shape[1], biases);
}

namespace {

std::string refusal(const Context& ctx, MatchedOperations operations) {
  const GroupedLinear &gate_up = linear_at(operations, 1), &down = linear_at(operations, 3);
  if (const std::string why = not_one_mlp(gate_up, down); !why.empty()) return why;
  if (ctx.in_mxfp8(gate_up.weight()) || ctx.in_mxfp8(down.weight())) return "its weights are in MXFP8";
  const Shape& shape = down.weight().shape;
  return ops::grouped_swiglu_refusal(ctx, shape[1], shape[2]);
}

}  // namespace

Fusion fused_mlp() {
  return {.name = "fused MLP",
          .pattern = expert_mlp_pattern(),
          .refusal = refusal,
          .make = [](MatchedOperations operations) -> std::unique_ptr<Operation> {
            return std::make_unique<FusedMlp>(linear_at(operations, 1), linear_at(operations, 3));
          }};
}

std::string FusedMlp::describe() const { return "FusedMlp " + describe_mlp(*gate_up_, *down_); }

Tensor FusedMlp::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const {
  Tensor gate_up = ctx.empty({groups.packed_rows(), 2 * intermediate()});
  Tensor act = ctx.empty({groups.max_rows(), intermediate()});
  ops::grouped_swiglu_forward(ctx, {.x = gathered(ctx, x, groups),
                                    .w = ctx.weights(gate_up_->weight()),
                                    .groups = groups,
                                    .gate_up = gate_up,
                                    .act = act,
                                    .bias = gate_up_->lease_bias(ctx).values});
  report_packed_rows(ctx, gate_up_->weight().name, gate_up, groups);
  Tensor rows = ctx.empty({groups.max_rows(), hidden()});
  ops::grouped_gemm_forward(
      ctx, {.x = act, .w = ctx.weights(down_->weight()), .groups = groups, .out = rows, .bias = down_->lease_bias(ctx)});
  report_rows(ctx, down_->weight().name, rows, groups);
  saved.push("fused_mlp.x", x);
  saved.push("fused_mlp.gate_up", gate_up);
  return combined(ctx, rows, groups);
}

/// Gives d(gate, up); the gradients of the down projection go to their sinks.
Tensor FusedMlp::down_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const ops::Groups& groups,
                               Tensor& drow_weight) const {
  const Tensor dy_rows = gathered(ctx, dy, groups);
  Tensor dgate_up = ctx.empty({groups.max_rows(), 2 * intermediate()});
  Tensor act = ctx.empty({groups.max_rows(), intermediate()});
  drow_weight = ctx.empty({groups.max_rows()}, DType::kF32);
  ops::grouped_swiglu_backward(ctx, {.dy = dy_rows,
                                     .w = ctx.weights(down_->weight()),
                                     .gate_up = gate_up,
                                     .groups = groups,
                                     .dgate_up = dgate_up,
                                     .act = act,
                                     .dweight = drow_weight});
  down_->bias_backward(ctx, dy_rows, groups, drow_weight);
  const GradSink sink = ctx.grad(down_->weight());
  ops::grouped_gemm_wgrad(ctx, {.dy = dy_rows, .x = act, .groups = groups, .out = sink.grad, .accumulate = sink.accumulate});
  ctx.grad_ready(down_->weight());
  return dgate_up;
}

Tensor FusedMlp::backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved, Tensor& drow_weight) const {
  Tensor gate_up = saved.pop("fused_mlp.gate_up");
  const Tensor x = saved.pop("fused_mlp.x");
  const Tensor dgate_up = down_backward(ctx, dy, gate_up, groups, drow_weight);
  gate_up = {};
  gate_up_->bias_backward(ctx, dgate_up, groups, drow_weight);
  Tensor rows = gathered(ctx, x, groups);
  const GradSink sink = ctx.grad(gate_up_->weight());
  ops::grouped_gemm_wgrad(ctx, {.dy = dgate_up, .x = rows, .groups = groups, .out = sink.grad, .accumulate = sink.accumulate});
  ctx.grad_ready(gate_up_->weight());
  ops::grouped_gemm_dgrad(ctx, {.dy = dgate_up, .w = ctx.weights(gate_up_->weight()), .groups = groups, .out = rows});
  return combined(ctx, rows, groups);
}

}  // namespace cistron::nn
