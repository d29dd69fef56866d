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
  const Parameter &gate_up = weight_at(operations, 1), &down = weight_at(operations, 3);
  if (const std::string why = not_one_mlp(gate_up, down); !why.empty()) return why;
  for (const Parameter* weight : {&gate_up, &down})
    if (!ctx.in_mxfp8(*weight)) return fmt::format("{} is not in MXFP8", weight->name);
  if (gate_up.mx_sections != 2) return fmt::format("gate and up are quantised in {} sections, not in 2", gate_up.mx_sections);
  return ops::mxfp8_grouped_swiglu_refusal(ctx, ctx.mx_group(), down.shape[1], down.shape[2]);
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
            return std::make_unique<FusedMxMlp>(weight_at(operations, 1), weight_at(operations, 3));
          }};
}

std::string FusedMxMlp::describe() const {
  return fmt::format("FusedMxMlp {} x {} -> {} -> {}", gate_up_->local_shape()[0], hidden(), intermediate(), hidden());
}

Tensor FusedMxMlp::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const {
  Tensor gate_up = ctx.empty({groups.max_rows(), 2 * intermediate()});
  const MxTensor act = ops::mxfp8_empty(ctx, groups.max_rows(), intermediate(), ctx.mx_group(), {.columns = false});
  MxOperand x_rows = gathered_quantized(ctx, x, groups, {.columns = false}).rows;
  report_underflow(ctx, kMxActivations, x_rows, groups);
  ops::mxfp8_grouped_swiglu_forward(
      ctx, {.x = x_rows, .w = ctx.mx_weights(*gate_up_, MxCopy::kRows), .groups = groups, .gate_up = gate_up, .act = act.rows});
  x_rows = {};
  report_underflow(ctx, kMxActivations, act.rows, groups);
  report_rows(ctx, gate_up_->name, gate_up, groups);
  Tensor rows = ctx.empty({groups.max_rows(), hidden()});
  ops::mxfp8_grouped_gemm(ctx, {.x = act.rows, .w = ctx.mx_weights(*down_, MxCopy::kRows), .groups = groups, .out = rows});
  report_rows(ctx, down_->name, rows, groups);
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
  ops::mxfp8_grouped_swiglu_backward(ctx, {.dy = dy_rows.rows,
                                           .w = ctx.mx_weights(*down_, MxCopy::kColumns),
                                           .gate_up = gate_up,
                                           .groups = groups,
                                           .dgate_up = dgate_up,
                                           .act = act.columns,
                                           .dweight = drow_weight});
  report_underflow(ctx, kMxGradients, dgate_up.rows, groups);
  wgrad(ctx, *down_, dy_rows.columns, act.columns, groups);
  return dgate_up;
}

Tensor FusedMxMlp::backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved, Tensor& drow_weight) const {
  Tensor gate_up = saved.pop("fused_mx_mlp.gate_up");
  const Tensor x = saved.pop("fused_mx_mlp.x");
  const MxTensor dgate_up = down_backward(ctx, dy, gate_up, groups, drow_weight);
  gate_up = {};
  wgrad(ctx, *gate_up_, dgate_up.columns, gathered_quantized(ctx, x, groups, {.rows = false}).columns, groups);
  Tensor rows = ctx.empty({groups.max_rows(), hidden()});
  ops::mxfp8_grouped_gemm(ctx,
                          {.x = dgate_up.rows, .w = ctx.mx_weights(*gate_up_, MxCopy::kColumns), .groups = groups, .out = rows});
  return combined(ctx, rows, groups);
}

}  // namespace cistron::nn
