#include "cistron/nn/router.h"

#include "cistron/ops/elementwise.h"
#include "cistron/ops/matmul.h"

namespace cistron::nn {

namespace {

Tensor to_dtype(Context& ctx, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor cast = ctx.empty(x.shape(), dtype);
  ops::cast(ctx, {.x = x, .out = cast});
  return cast;
}

}  // namespace

Router::Router(const Options& options)
    : options_(options),
      weight_{.name = options.name, .shape = {options.experts, options.hidden}, .init_std = options.init_std, .keep_f32 = true} {}

Router::Routing Router::forward(Context& ctx, const Tensor& x, Saved& saved, const Tensor& stats, const Tensor& replay) const {
  const int64_t tokens = x.dim(0);
  Tensor probs = ctx.empty({tokens, options_.experts}, DType::kF32);
  Tensor lse = ctx.empty({tokens}, DType::kF32);
  Tensor weights = ctx.empty({tokens, options_.top_k}, DType::kF32);
  Tensor experts = replay.defined() ? replay : ctx.empty({tokens, options_.top_k}, DType::kI32);
  ops::matmul_forward(ctx, {.x = to_dtype(ctx, x, DType::kF32), .w = ctx.weights(weight_), .out = probs});
  ctx.report(weight_.name, probs);
  ops::router_forward(
      ctx, {.logits = probs, .probs = probs, .lse = lse, .experts = experts, .weights = weights, .replay = replay.defined()});
  if (stats.defined()) ops::router_stats(ctx, {.probs = probs, .lse = lse, .experts = experts, .stats = stats});
  saved.push("router.x", x);
  saved.push("router.probs", probs);
  saved.push("router.lse", lse);
  saved.push("router.experts", experts);
  saved.push("router.weights", weights);
  return {.experts = experts, .weights = weights};
}

void Router::backward(Context& ctx, const Tensor& dweights, const AuxLosses& aux, Saved& saved, const Tensor& dx) const {
  const Tensor weights = saved.pop("router.weights");
  const Tensor experts = saved.pop("router.experts");
  const Tensor lse = saved.pop("router.lse");
  const Tensor probs = saved.pop("router.probs");
  const Tensor x = saved.pop("router.x");
  Tensor dlogits = ctx.empty(probs.shape(), DType::kF32);
  ops::router_backward(ctx, {.probs = probs,
                             .lse = lse,
                             .experts = experts,
                             .weights = weights,
                             .dweights = dweights,
                             .stats = aux.stats,
                             .aux_coefficient = aux.balance,
                             .z_coefficient = aux.z,
                             .dlogits = dlogits});
  const GradSink sink = ctx.grad(weight_);
  ops::matmul_wgrad(ctx, {.dy = dlogits, .x = to_dtype(ctx, x, DType::kF32), .out = sink.grad, .accumulate = sink.accumulate});
  ctx.grad_ready(weight_);
  Tensor through_logits = ctx.empty(x.shape(), DType::kF32);
  ops::matmul_dgrad(ctx, {.dy = dlogits, .w = ctx.weights(weight_), .out = through_logits});
  ops::add(ctx, {.a = dx, .b = to_dtype(ctx, through_logits, dx.dtype()), .out = dx});
  ctx.report(weight_.name + " (backward)", dx);
}

}  // namespace cistron::nn
