#include "cistron/nn/attention.h"

#include <cmath>

#include "cistron/ops/attention_decode.h"
#include "cistron/ops/elementwise.h"

namespace cistron::nn {

SelfAttention::SelfAttention(const Options& options)
    : options_(options),
      qkv_({.name = options.name + ".qkv",
            .in = options.hidden,
            .out = options.shape.qkv_width(),
            .init_std = options.init_std,
            .mxfp8 = options.mxfp8}),
      out_({.name = options.name + ".out",
            .in = options.shape.out_width(),
            .out = options.hidden,
            .init_std = options.init_std,
            .mxfp8 = options.mxfp8}) {}

float SelfAttention::scale() const { return 1.0F / std::sqrt(static_cast<float>(options_.shape.head_dim)); }

Tensor SelfAttention::forward(Context& ctx, const Flow& in, const Batch& batch, Saved& saved) const {
  const Tensor qkv = in.x.defined() ? qkv_.forward(ctx, in.x, saved) : qkv_.forward(ctx, in.mx, saved);
  if (options_.clip_qkv > 0) {
    ops::clamp(ctx, {.x = qkv, .limit = options_.clip_qkv});
    Tensor clamped = ctx.empty(qkv.shape());  // the rotation is in place, and backward asks which values were held back
    ops::cast(ctx, {.x = qkv, .out = clamped});
    saved.push("attention.clamped", clamped);
  }
  ops::rope(ctx, {.qkv = qkv, .positions = batch.positions, .shape = options_.shape, .theta = options_.rope_theta});
  const Tensor out = attend(ctx, qkv, batch, saved);
  ctx.report(options_.name + ".softmax", out);
  return out_.forward(ctx, out, saved);
}

Tensor SelfAttention::attend(Context& ctx, const Tensor& qkv, const Batch& batch, Saved& saved) const {
  const Tensor &cache = batch.cache, &slots = batch.slots, &positions = batch.positions;
  const ops::AttentionShape& shape = options_.shape;
  Tensor out = ctx.empty({qkv.dim(0), shape.out_width()});
  if (cache.defined())
    ops::cache_store(ctx, {.qkv = qkv, .slots = slots, .positions = positions, .shape = shape, .cache = cache});
  if (!batch.cu_seqlens.defined()) {
    ops::attention_decode(
        ctx, {.qkv = qkv, .cache = cache, .slots = slots, .positions = positions, .shape = shape, .scale = scale(), .out = out});
    return out;
  }
  Tensor lse = ctx.empty({shape.num_heads, qkv.dim(0)}, DType::kF32);
  ops::attention_forward(ctx, {.qkv = qkv,
                               .cu_seqlens = batch.cu_seqlens,
                               .shape = shape,
                               .scale = scale(),
                               .causal = options_.causal,
                               .out = out,
                               .lse = lse});
  saved.push("attention.qkv", qkv);
  saved.push("attention.lse", lse);
  saved.push("attention.out", out);
  return out;
}

Tensor SelfAttention::backward(Context& ctx, const Tensor& dy, const Batch& batch, Saved& saved) const {
  const Tensor dout = out_.backward(ctx, dy, saved);
  const Tensor out = saved.pop("attention.out");
  const Tensor lse = saved.pop("attention.lse");
  const Tensor qkv = saved.pop("attention.qkv");
  Tensor dqkv = ctx.empty(qkv.shape());
  ops::attention_backward(ctx, {.dout = dout,
                                .qkv = qkv,
                                .out = out,
                                .lse = lse,
                                .cu_seqlens = batch.cu_seqlens,
                                .shape = options_.shape,
                                .scale = scale(),
                                .causal = options_.causal,
                                .dqkv = dqkv});
  ops::rope(ctx,
            {.qkv = dqkv, .positions = batch.positions, .shape = options_.shape, .theta = options_.rope_theta, .inverse = true});
  if (options_.clip_qkv > 0)
    ops::clamp_backward(ctx, {.clamped = saved.pop("attention.clamped"), .limit = options_.clip_qkv, .dx = dqkv});
  Tensor dx = qkv_.backward(ctx, dqkv, saved);
  ctx.report(options_.name + " (backward)", dx);
  return dx;
}

}  // namespace cistron::nn
