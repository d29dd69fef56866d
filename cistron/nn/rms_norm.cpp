#include "cistron/nn/rms_norm.h"

#include "cistron/ops/rms_norm.h"

namespace cistron::nn {

RmsNorm::RmsNorm(const Options& options)
    : weight_{.name = options.name, .shape = {options.hidden}, .init = Init::kOnes, .decay = false, .keep_f32 = true},
      eps_(options.eps) {}

Tensor RmsNorm::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  Tensor y = ctx.empty(x.shape());
  Tensor rstd = ctx.empty({x.dim(0)}, DType::kF32);
  ops::rms_norm_forward(ctx, {.x = x, .w = ctx.weights(weight_), .eps = eps_, .out = y, .rstd = rstd});
  save(ctx, x, y, rstd, saved);
  return y;
}

RmsNorm::Sum RmsNorm::forward_sum(Context& ctx, const Tensor& a, const Tensor& b, Saved& saved) const {
  Sum sum{.x = ctx.empty(a.shape()), .y = ctx.empty(a.shape())};
  Tensor rstd = ctx.empty({a.dim(0)}, DType::kF32);
  ops::add_rms_norm_forward(ctx,
                            {.a = a, .b = b, .w = ctx.weights(weight_), .eps = eps_, .sum = sum.x, .out = sum.y, .rstd = rstd});
  save(ctx, sum.x, sum.y, rstd, saved);
  return sum;
}

void RmsNorm::save(Context& ctx, const Tensor& x, const Tensor& y, const Tensor& rstd, Saved& saved) const {
  saved.push("rms_norm.x", x);
  saved.push("rms_norm.rstd", rstd);
  ctx.report(weight_.name, y);
}

void RmsNorm::backward(Context& ctx, const Tensor& dy, Saved& saved, const Tensor& dx, bool accumulate_dx) const {
  const Tensor rstd = saved.pop("rms_norm.rstd");
  const Tensor x = saved.pop("rms_norm.x");
  ops::rms_norm_backward(ctx, {.dy = dy,
                               .x = x,
                               .w = ctx.weights(weight_),
                               .rstd = rstd,
                               .dx = dx,
                               .accumulate_dx = accumulate_dx,
                               .dw = ctx.grad(weight_)});
  ctx.grad_ready(weight_);
  ctx.report(weight_.name + " (backward)", dx);
}

}  // namespace cistron::nn
