#include "cistron/nn/fused_mx_mlp.h"

#include "cistron/core/error.h"
#include "cistron/nn/fused_mlp.h"
#include "cistron/nn/mx_report.h"
#include "cistron/nn/routed_rows.h"
#include "cistron/ops/mxfp8_grouped_gemm.h"
#include "cistron/ops/mxfp8_grouped_swiglu.h"

namespace cistron::nn {

namespace {

std::string refusal(const Context& ctx, MatchedOperations operations) {
  const GroupedLinear &gate_up = linear_at(operations, 1), &down = linear_at(operations, 3);
  if (const std::string why = not_one_mlp(gate_up, down); !why.empty()) return why;
  for (const GroupedLinear* linear : {&gate_up, &down})
    if (!ctx.in_mxfp8(linear->weight())) return fmt::format("{} is not in MXFP8", linear->weight().name);
  if (const int64_t sections = gate_up.weight().mx_sections; sections != 2)
    return fmt::format("gate and up are quantised in {} sections, not in 2", sections);
  const Shape& shape = down.weight().shape;
  return ops::mxfp8_grouped_swiglu_refusal(ctx, ctx.mx_group(), shape[1], shape[2]);
}

/// The rows of x [T, H] in expert order.
MxTensor gathered_quantized(Context& ctx, const Tensor& x, const ops::Groups& groups, ops::MxCopies copies) {
  const MxTensor rows = ops::mxfp8_empty(ctx, groups.max_rows(), x.dim(1), ctx.mx_group(), copies);
  ops::mxfp8_quantize(ctx, {.x = x, .out = rows, .source_row = groups.source_row, .starts = groups.starts});
  return rows;
}

void wgrad(Context& ctx, const Parameter& weight, const MxOperand& dy, const MxOperand& x, const ops::Groups& groups) {
  const GradSink sink = ctx.grad(weight);
  ops::mxfp8_grouped_wgrad(ctx, {.dy = dy, .x = x, .groups = groups, .out = sink.grad, .accumulate = sink.accumulate});
  ctx.grad_ready(weight);
}

}  // namespace

Fusion fused_mx_mlp() {
  return {.name = "fused MXFP8 MLP",
          .pattern = expert_mlp_pattern(),
          .refusal = refusal,
          .make = [](MatchedOperations operations) -> std::unique_ptr<Operation> {
            return std::make_unique<FusedMxMlp>(linear_at(operations, 1), linear_at(operations, 3));
          }};
}

std::string FusedMxMlp::describe() const { return "FusedMxMlp " + describe_mlp(*gate_up_, *down_); }

Tensor FusedMxMlp::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const {
  Tensor gate_up = ctx.empty({groups.packed_rows(), 2 * intermediate()});
  const MxTensor act = ops::mxfp8_empty(ctx, groups.max_rows(), intermediate(), ctx.mx_group(), {.columns = false});
  MxOperand x_rows = gathered_quantized(ctx, x, groups, {.columns = false}).rows;
  report_underflow(ctx, kMxActivations, x_rows, groups);
  ops::mxfp8_grouped_swiglu_forward(ctx, {.x = x_rows,
                                          .w = ctx.mx_weights(gate_up_->weight(), MxCopy::kRows),
                                          .groups = groups,
                                          .gate_up = gate_up,
                                          .act = act.rows,
                                          .bias = gate_up_->lease_bias(ctx).values});
  x_rows = {};
  report_underflow(ctx, kMxActivations, act.rows, groups);
  report_packed_rows(ctx, gate_up_->weight().name, gate_up, groups);
  Tensor rows = ctx.empty({groups.max_rows(), hidden()});
  ops::mxfp8_grouped_gemm(ctx, {.x = act.rows,
                                .w = ctx.mx_weights(down_->weight(), MxCopy::kRows),
                                .groups = groups,
                                .out = rows,
                                .bias = down_->lease_bias(ctx)});
  report_rows(ctx, down_->weight().name, rows, groups);
  saved.push("fused_mx_mlp.x", x);
  saved.push("fused_mx_mlp.gate_up", gate_up);
  return combined(ctx, rows, groups);
}

MxTensor FusedMxMlp::down_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const ops::Groups& groups,
                                   Tensor& drow_weight) const {
  const MxTensor dy_rows = gathered_quantized(ctx, dy, groups, {});
  report_underflow(ctx, kMxGradients, dy_rows.rows, groups);
  const int64_t rows = groups.max_rows();
  const MxTensor dgate_up = ops::mxfp8_empty(ctx, rows, 2 * intermediate(), ctx.mx_group());
  const MxTensor act = ops::mxfp8_empty(ctx, rows, intermediate(), ctx.mx_group(), {.rows = false});
  drow_weight = ctx.empty({rows}, DType::kF32);
  const Parameter* bias = gate_up_->bias_parameter();
  ops::mxfp8_grouped_swiglu_backward(ctx, {.dy = dy_rows.rows,
                                           .w = ctx.mx_weights(down_->weight(), MxCopy::kColumns),
                                           .gate_up = gate_up,
                                           .groups = groups,
                                           .dgate_up = dgate_up,
                                           .act = act.columns,
                                           .dweight = drow_weight,
                                           .dbias = bias == nullptr ? GradSink{} : ctx.grad(*bias)});
  if (bias != nullptr) ctx.grad_ready(*bias);
  down_->bias_backward(ctx, dy, groups, drow_weight, true);
  report_underflow(ctx, kMxGradients, dgate_up.rows, groups);
  wgrad(ctx, down_->weight(), dy_rows.columns, act.columns, groups);
  return dgate_up;
}

Tensor FusedMxMlp::backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved, Tensor& drow_weight) const {
  Tensor gate_up = saved.pop("fused_mx_mlp.gate_up");
  const Tensor x = saved.pop("fused_mx_mlp.x");
  const MxTensor dgate_up = down_backward(ctx, dy, gate_up, groups, drow_weight);
  gate_up = {};
  wgrad(ctx, gate_up_->weight(), dgate_up.columns, gathered_quantized(ctx, x, groups, {.rows = false}).columns, groups);
  Tensor rows = ctx.empty({groups.max_rows(), hidden()});
  ops::mxfp8_grouped_gemm(
      ctx, {.x = dgate_up.rows, .w = ctx.mx_weights(gate_up_->weight(), MxCopy::kColumns), .groups = groups, .out = rows});
  return combined(ctx, rows, groups);
}

}  // namespace cistron::nn
