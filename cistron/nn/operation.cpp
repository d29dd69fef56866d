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
              .count = options.count},
      bias_kind_(options.bias),
      bias_{.name = options.name + ".bias",
            .shape = {options.experts, options.out},
            .init_std = 0.0F,
            .decay = false,
            .keep_f32 = true,
            .begin = options.begin,
            .count = options.count} {}

std::vector<const Parameter*> GroupedLinear::parameters() const {
  if (bias_kind_ == Bias::kNone) return {&weight_};
  return {&weight_, &bias_};
}

ops::ExpertBias GroupedLinear::lease_bias(const Context& ctx) const {
  if (bias_kind_ == Bias::kNone) return {};
  return {.values = ctx.weights(bias_), .scaled = bias_kind_ == Bias::kScaled};
}

void GroupedLinear::bias_backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Tensor& drow_weight,
                                  bool by_token) const {
  if (bias_kind_ == Bias::kNone) return;
  const ops::ExpertBias bias = bias_kind_ == Bias::kScaled ? lease_bias(ctx) : ops::ExpertBias{};
  const bool accumulate = drow_weight.defined();
  if (bias.scaled && !accumulate) drow_weight = ctx.empty({groups.max_rows()}, DType::kF32);
  const GradSink sink = ctx.grad(bias_);
  ops::grouped_bias_backward(ctx, {.dy = dy,
                                   .bias = bias,
                                   .groups = groups,
                                   .dbias = sink,
                                   .dweight = drow_weight,
                                   .accumulate_dweight = accumulate,
                                   .by_token = by_token});
  ctx.grad_ready(bias_);
}

Tensor GroupedLinear::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const {
  Tensor y;
  if (ctx.in_mxfp8(weight_)) {
    y = mx_forward(ctx, weight_, x, groups, saved, lease_bias(ctx));
  } else {
    y = ctx.empty({x.dim(0), weight_.shape[1]});
    ops::grouped_gemm_forward(ctx, {.x = x, .w = ctx.weights(weight_), .groups = groups, .out = y, .bias = lease_bias(ctx)});
    saved.push("grouped_linear.x", x);
  }
  report_rows(ctx, weight_.name, y, groups);
  return y;
}

Tensor GroupedLinear::backward(Context& ctx, const Tensor& dy, const ops::Groups& groups, Saved& saved,
                               Tensor& drow_weight) const {
  bias_backward(ctx, dy, groups, drow_weight);
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
  constexpr const char* kBiases[] = {"", " with biases", " with biases times routing weights"};
  return fmt::format("GroupedLinear {} x {} -> {}{}", weight_.local_shape()[0], weight_.shape[2], weight_.shape[1],
                     kBiases[static_cast<size_t>(bias_kind_)]);
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
  const bool accumulate = drow_weight.defined();
  if (!accumulate) drow_weight = ctx.empty({gate_up.dim(0)}, DType::kF32);
  ops::scaled_swiglu_backward(ctx, {.dy = dy,
                                    .gate_up = gate_up,
                                    .groups = groups,
                                    .dgate_up = dgate_up,
                                    .dweight = drow_weight,
                                    .accumulate_dweight = accumulate});
  return dgate_up;
}

}  // namespace cistron::nn
