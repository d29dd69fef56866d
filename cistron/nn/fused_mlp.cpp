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

const Parameter& weight_at(MatchedOperations operations, size_t place) { return *operations[place]->parameters().front(); }

std::string not_one_mlp(const Parameter& gate_up, const Parameter& down) {
  if (gate_up.shape[1] == 2 * down.shape[2] && gate_up.shape[2] == down.shape[1]) return "";
  return fmt::format("gate and up {} and down {} are not those of one MLP", to_string(gate_up.shape), to_string(down.shape));
}

namespace {

std::string refusal(const Context& ctx, MatchedOperations operations) {
  const Parameter &gate_up = weight_at(operations, 1), &down = weight_at(operations, 3);
  if (const std::string why = not_one_mlp(gate_up, down); !why.empty()) return why;
  if (ctx.in_mxfp8(gate_up) || ctx.in_mxfp8(down)) return "its weights are in MXFP8";
  return ops::grouped_swiglu_refusal(ctx, down.shape[1], down.shape[2]);
}

}  // namespace

Fusion fused_mlp() {
  return {.name = "fused MLP",
          .pattern = expert_mlp_pattern(),
          .refusal = refusal,
          .make = [](MatchedOperations operations) -> std::unique_ptr<Operation> {
            return std::make_unique<FusedMlp>(weight_at(operations, 1), weight_at(operations, 3));
          }};
}

std::string FusedMlp::describe() const {
  return fmt::format("FusedMlp {} x {} -> {} -> {}", gate_up_->shape[0], hidden(), intermediate(), hidden());
}

Tensor FusedMlp::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const {
  Tensor gate_up = ctx.empty({groups.max_rows(), 2 * intermediate()});
  Tensor act = ctx.empty({groups.max_rows(), intermediate()});
  ops::grouped_swiglu_forward(
      ctx, {.x = gathered(ctx, x, groups), .w = ctx.weights(*gate_up_), .groups = groups, .gate_up = gate_up, .act = act});
  report_rows(ctx, gate_up_->name, gate_up, groups);
  Tensor rows = ctx.empty({groups.max_rows(), hidden()});
  ops::grouped_gemm_forward(ctx, {.x = act, .w = ctx.weights(*down_), .groups = groups, .out = rows});
  report_rows(ctx, down_->name, rows, groups);
  saved.push("fused_mlp.x", x);
  saved.push("fused_mlp.gate_up", gate_up);
  return combined(ctx, rows, groups);
}

/// Gives d(gate, up); the gradient of the down projection goes to its sink.
Tensor FusedMlp::down_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const ops::Groups& groups,
                               Tensor& drow_weight) const {
  const Tensor dy_rows = gathered(ctx, dy, groups);
  Tensor dgate_up = ctx.empty(gate_up.shape());
  Tensor act = ctx.empty({groups.max_rows(), intermediate()});
  drow_weight = ctx.empty({groups.max_rows()}, DType::kF32);
  ops::grouped_swiglu_backward(ctx, {.dy = dy_rows,
                                     .w = ctx.weights(*down_),
                                     .gate_up = gate_up,
                                     .groups = groups,
                                     .dgate_up = dgate_up,
                                     .act = act,
                                     .dweight = drow_weight});
  const GradSink sink = ctx.grad(*down_);
  ops::grouped_gemm_wgrad(ctx, {.dy = dy_rows, .x = act, .groups = groups, .out = sink.grad, .accumulate = sink.accumulate});
  ctx.grad_ready(*down_);
  return dgate_up;
}

Tensor FusedMlp::backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved, Tensor& drow_weight) const {
  Tensor gate_up = saved.pop("fused_mlp.gate_up");
  const Tensor x = saved.pop("fused_mlp.x");
  const Tensor dgate_up = down_backward(ctx, dy, gate_up, groups, drow_weight);
  gate_up = {};
  Tensor rows = gathered(ctx, x, groups);
  const GradSink sink = ctx.grad(*gate_up_);
  ops::grouped_gemm_wgrad(ctx, {.dy = dgate_up, .x = rows, .groups = groups, .out = sink.grad, .accumulate = sink.accumulate});
  ctx.grad_ready(*gate_up_);
  ops::grouped_gemm_dgrad(ctx, {.dy = dgate_up, .w = ctx.weights(*gate_up_), .groups = groups, .out = rows});
  return combined(ctx, rows, groups);
}

}  // namespace cistron::nn
