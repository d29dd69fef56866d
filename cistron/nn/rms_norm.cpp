#include "cistron/nn/rms_norm.h"

#include "cistron/core/error.h"
#include "cistron/ops/elementwise.h"
#include "cistron/ops/rms_norm.h"

namespace cistron::nn {

RmsNorm::RmsNorm(const Options& options)
    : weight_{.name = options.name, .shape = {options.hidden}, .init = Init::kOnes, .decay = false, .keep_f32 = true},
      eps_(options.eps) {}

std::string RmsNorm::describe() const { return fmt::format("RmsNorm {}", weight_.shape[0]); }

void RmsNorm::run(Context& ctx, Flow& flow, Saved& saved) const {
  flow.x = ctx.empty(flow.stream.shape());
  const Tensor rstd = ctx.empty({flow.stream.dim(0)}, DType::kF32);
  ops::rms_norm_forward(ctx, {.x = flow.stream, .w = ctx.weights(weight_), .eps = eps_, .out = flow.x, .rstd = rstd});
  save_norm(flow.stream, rstd, saved);
  ctx.report(weight_.name, flow.x);
}

void RmsNorm::run_back(Context& ctx, Flow& gradient, Saved& saved) const {
  const Tensor dx = ctx.empty(gradient.x.shape());
  norm_backward(ctx, weight_, gradient.x, saved, dx, /*accumulate=*/false);
  if (gradient.stream.defined())
    ops::add(ctx, {.a = gradient.stream, .b = dx, .out = gradient.stream});
  else
    gradient.stream = dx;
  gradient.x = {};
}

void save_norm(const Tensor& x, const Tensor& rstd, Saved& saved) {
  saved.push("rms_norm.x", x);
  saved.push("rms_norm.rstd", rstd);
}

void norm_backward(Context& ctx, const Parameter& weight, const Tensor& dy, Saved& saved, const Tensor& dx, bool accumulate) {
  const Tensor rstd = saved.pop("rms_norm.rstd");
  const Tensor x = saved.pop("rms_norm.x");
  ops::rms_norm_backward(
      ctx,
      {.dy = dy, .x = x, .w = ctx.weights(weight), .rstd = rstd, .dx = dx, .accumulate_dx = accumulate, .dw = ctx.grad(weight)});
  ctx.grad_ready(weight);
  ctx.report(weight.name + " (backward)", dx);
}

}  // namespace cistron::nn
