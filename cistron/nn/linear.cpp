#include "cistron/nn/linear.h"

#include "cistron/nn/mx_products.h"
#include "cistron/ops/matmul.h"

namespace cistron::nn {

Linear::Linear(const Options& options)
    : weight_{.name = options.name,
              .shape = {options.out, options.in},
              .init_std = options.init_std,
              .mx_sections = options.mxfp8 ? 1 : 0} {}

Tensor Linear::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  Tensor y;
  if (ctx.in_mxfp8(weight_)) {
    y = mx_forward(ctx, weight_, x, ops::one_group(ctx, x.dim(0)), saved);
  } else {
    y = ctx.empty({x.dim(0), weight_.shape[0]});
    ops::matmul_forward(ctx, {.x = x, .w = ctx.weights(weight_), .out = y});
    saved.push("linear.x", x);
  }
  ctx.report(weight_.name, y);
  return y;
}

Tensor Linear::forward(Context& ctx, const MxTensor& x, Saved& saved) const {
  const Tensor y = mx_forward(ctx, weight_, x, ops::one_group(ctx, x.rows.rows()), saved);
  ctx.report(weight_.name, y);
  return y;
}

Tensor Linear::backward(Context& ctx, const Tensor& dy, Saved& saved) const {
  if (ctx.in_mxfp8(weight_)) return mx_backward(ctx, weight_, dy, ops::one_group(ctx, dy.dim(0)), saved);
  const Tensor x = saved.pop("linear.x");
  const GradSink sink = ctx.grad(weight_);
  ops::matmul_wgrad(ctx, {.dy = dy, .x = x, .out = sink.grad, .accumulate = sink.accumulate});
  ctx.grad_ready(weight_);
  Tensor dx = ctx.empty(x.shape());
  ops::matmul_dgrad(ctx, {.dy = dy, .w = ctx.weights(weight_), .out = dx});
  return dx;
}

}  // namespace cistron::nn
