#include "cistron/model/decoder_layer.h"

#include "cistron/ops/elementwise.h"

namespace cistron::model {

namespace {

nn::SelfAttention::Options attention_options(const ModelConfig& c, const LayerOptions& o) {
  return {.name = o.name + ".attention",
          .hidden = c.hidden,
          .shape = {.num_heads = c.heads, .num_kv_heads = c.kv_heads, .head_dim = c.head_dim},
          .rope_theta = static_cast<float>(c.rope_theta),
          .clip_qkv = static_cast<float>(c.clip_qkv),
          .init_std = static_cast<float>(c.init_std),
          .mxfp8 = o.mxfp8_attention};
}

nn::MoeBlock::Options moe_options(const ModelConfig& c, const LayerOptions& o) {
  return {.name = o.name + ".moe",
          .hidden = c.hidden,
          .intermediate = c.intermediate,
          .experts = c.experts,
          .top_k = c.top_k,
          .loop = o.loop,
          .init_std = static_cast<float>(c.init_std),
          .mxfp8 = o.mxfp8_experts,
          .held = o.held};
}

Tensor sum(Context& ctx, const Tensor& a, const Tensor& b) {
  Tensor out = ctx.empty(a.shape());
  ops::add(ctx, {.a = a, .b = b, .out = out});
  return out;
}

}  // namespace

DecoderLayer::DecoderLayer(const ModelConfig& c, const LayerOptions& o)
    : attention_norm_({.name = o.name + ".attention_norm", .hidden = c.hidden, .eps = static_cast<float>(c.rms_eps)}),
      moe_norm_({.name = o.name + ".moe_norm", .hidden = c.hidden, .eps = static_cast<float>(c.rms_eps)}),
      attention_(attention_options(c, o)),
      moe_(moe_options(c, o)) {}

Tensor DecoderLayer::attention_forward(Context& ctx, const Tensor& x, const nn::Batch& batch, nn::Saved& saved) const {
  return attention_.forward(ctx, attention_norm_.forward(ctx, x, saved), batch, saved);
}

DecoderLayer::MoeOutput DecoderLayer::moe_forward(Context& ctx, const nn::RmsNorm::Sum& h, nn::Saved& saved, const Tensor& stats,
                                                  const Tensor& replay) const {
  const auto [y, experts] = moe_.forward(ctx, h.y, saved, stats, replay);
  return {.y = sum(ctx, h.x, y), .experts = experts};
}

void DecoderLayer::attention_backward(Context& ctx, const Tensor& dx, const nn::Batch& batch, nn::Saved& saved) const {
  const Tensor dnormed = attention_.backward(ctx, dx, batch, saved);
  attention_norm_.backward(ctx, dnormed, saved, dx);
}

void DecoderLayer::moe_backward(Context& ctx, const Tensor& dx, nn::Saved& saved, const nn::Router::AuxLosses& aux) const {
  const Tensor dnormed = moe_.backward(ctx, dx, aux, saved);
  moe_norm_.backward(ctx, dnormed, saved, dx);
}

Tensor DecoderLayer::forward(Context& ctx, const Tensor& x, const nn::Batch& batch, Recompute recompute, nn::Saved& saved,
                             const Tensor& router_stats, const Tensor& choices) const {
  nn::Saved dropped;
  nn::Saved& moe_saved = recompute == Recompute::kNone ? saved : dropped;
  nn::Saved& attention_saved = recompute == Recompute::kLayer ? dropped : saved;
  const auto h = moe_norm_.forward_sum(ctx, x, attention_forward(ctx, x, batch, attention_saved), moe_saved);
  const auto [y, experts] = moe_forward(ctx, h, moe_saved, router_stats, choices);
  if (recompute != Recompute::kNone) {
    saved.push("layer.input", recompute == Recompute::kLayer ? x : h.x);
    saved.push("layer.experts", experts);
  }
  return y;
}

void DecoderLayer::backward(Context& ctx, const Tensor& dx, const nn::Batch& batch, Recompute recompute, nn::Saved& saved,
                            const nn::Router::AuxLosses& aux) const {
  nn::Saved again;
  if (recompute != Recompute::kNone) {
    const Tensor experts = saved.pop("layer.experts");
    const Tensor input = saved.pop("layer.input");
    const auto h = recompute == Recompute::kLayer
                       ? moe_norm_.forward_sum(ctx, input, attention_forward(ctx, input, batch, again), again)
                       : nn::RmsNorm::Sum{.x = input, .y = moe_norm_.forward(ctx, input, again)};
    moe_forward(ctx, h, again, {}, experts);
  }
  moe_backward(ctx, dx, recompute == Recompute::kNone ? saved : again, aux);
  attention_backward(ctx, dx, batch, recompute == Recompute::kLayer ? again : saved);
}

std::vector<const Parameter*> DecoderLayer::parameters() const {
  std::vector<const Parameter*> all{&attention_norm_.weight()};
  const auto append = [&](const std::vector<const Parameter*>& more) { all.insert(all.end(), more.begin(), more.end()); };
  append(attention_.parameters());
  all.push_back(&moe_norm_.weight());
  append(moe_.parameters());
  return all;
}

}  // namespace cistron::model
