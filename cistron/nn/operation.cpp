#include "cistron/nn/operation.h"

#include "cistron/core/checked.h"
#include "cistron/nn/mx_products.h"
#include "cistron/nn/routed_rows.h"
#include "cistron/ops/grouped_gemm.h"
#include "cistron/ops/swiglu.h"

namespace cistron::nn {

Tensor Gather::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& /*saved*/) const {
  return gathered(ctx, x, groups);
}

Tensor Gather::backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& /*saved*/,
                        Tensor& /*drow_weight*/) const {
  return combined(ctx, dy, groups);
}

Tensor Combine::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& /*saved*/) const {
  return combined(ctx, x, groups);
}

Tensor Combine::backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& /*saved*/,
                         Tensor& /*drow_weight*/) const {
  return gathered(ctx, dy, groups);
}

GroupedLinear::GroupedLinear(const Options& options)
    : weight_{.name = options.name,
              .shape = {options.experts, options.out, options.in},
              .init_std = options.init_std,
              .mx_sections = options.mx_sections,
              .begin = options.begin,
              .count = options.count} {}

Tensor GroupedLinear::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const {
  Tensor y;
  if (ctx.in_mxfp8(weight_)) {
    y = mx_forward(ctx, weight_, x, groups, saved);
  } else {
    y = ctx.empty({x.dim(0), weight_.shape[1]});
    ops::grouped_gemm_forward(ctx, {.x = x, .w = ctx.weights(weight_), .groups = groups, .out = y});
    saved.push("grouped_linear.x", x);
  }
  report_rows(ctx, weight_.name, y, groups);
  return y;
}

Tensor GroupedLinear::backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved,
                               Tensor& /*drow_weight*/) const {
  if (ctx.in_mxfp8(weight_)) return mx_backward(ctx, weight_, dy, groups, saved);
  const Tensor x = saved.pop("grouped_linear.x");
  const GradSink sink = ctx.grad(weight_);
  ops::grouped_gemm_wgrad(ctx, {.dy = dy, .x = x, .groups = groups, .out = sink.grad, .accumulate = sink.accumulate});
  ctx.grad_ready(weight_);
  Tensor dx = ctx.empty(x.shape());
  ops::grouped_gemm_dgrad(ctx, {.dy = dy, .w = ctx.weights(weight_), .groups = groups, .out = dx});
  return dx;
}

std::string GroupedLinear::describe() const {
  return fmt::format("GroupedLinear {} x {} -> {}", weight_.local_shape()[0], weight_.shape[2], weight_.shape[1]);
}

Tensor ScaledSwiGlu::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const {
  Tensor y = ctx.empty({x.dim(0), div_exact(x.dim(1), 2)});
  ops::scaled_swiglu_forward(ctx, {.gate_up = x, .groups = groups, .out = y});
  saved.push("scaled_swiglu.gate_up", x);
  return y;
}

Tensor ScaledSwiGlu::backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved,
                              Tensor& drow_weight) const {
  const Tensor gate_up = saved.pop("scaled_swiglu.gate_up");
  Tensor dgate_up = ctx.empty(gate_up.shape());
  drow_weight = ctx.empty({gate_up.dim(0)}, DType::kF32);
  ops::scaled_swiglu_backward(ctx,
                              {.dy = dy, .gate_up = gate_up, .groups = groups, .dgate_up = dgate_up, .dweight = drow_weight});
  return dgate_up;
}

}  // namespace cistron::nn
