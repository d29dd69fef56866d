#include "cistron/model/decoder_layer.h"

#include "cistron/nn/residual.h"
#include "cistron/nn/rms_norm.h"

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

nn::RmsNorm norm(const ModelConfig& c, const std::string& name) {
  return nn::RmsNorm({.name = name, .hidden = c.hidden, .eps = static_cast<float>(c.rms_eps)});
}

nn::Sequential attention_norm(const ModelConfig& c, const LayerOptions& o) {
  const nn::RmsNorm of_layer = norm(c, o.name + ".attention_norm");
  if (!o.mxfp8_attention) return nn::Sequential{nn::Residual{}, of_layer};
  return nn::Sequential{nn::Residual{}, of_layer, nn::Quantize{}};
}

}  // namespace

DecoderLayer::DecoderLayer(const ModelConfig& c, const LayerOptions& o)
    : attention_norm_(attention_norm(c, o)),
      moe_norm_(nn::Residual{}, norm(c, o.name + ".moe_norm")),
      attention_(attention_options(c, o)),
      moe_(moe_options(c, o)) {}

void DecoderLayer::attention_forward(Context& ctx, nn::Flow& flow, const nn::Batch& batch, nn::Saved& saved) const {
  attention_norm_.run(ctx, flow, saved);
  flow.x = attention_.forward(ctx, flow, batch, saved);
  flow.mx = {};
}

Tensor DecoderLayer::moe_forward(Context& ctx, nn::Flow& flow, nn::Saved& saved, const Tensor& stats,
                                 const Tensor& replay) const {
  moe_norm_.run(ctx, flow, saved);
  const auto [y, experts] = moe_.forward(ctx, flow.x, saved, stats, replay);
  flow.x = y;
  return experts;
}

void DecoderLayer::attention_backward(Context& ctx, nn::Flow& gradient, const nn::Batch& batch, nn::Saved& saved) const {
  gradient.x = attention_.backward(ctx, gradient.x, batch, saved);
  attention_norm_.run_back(ctx, gradient, saved);
}

void DecoderLayer::moe_backward(Context& ctx, nn::Flow& gradient, nn::Saved& saved, const nn::Router::AuxLosses& aux) const {
  gradient.x = moe_.backward(ctx, gradient.x, aux, saved);
  moe_norm_.run_back(ctx, gradient, saved);
}

void DecoderLayer::forward(Context& ctx, nn::Flow& flow, const nn::Batch& batch, Recompute recompute, nn::Saved& saved,
                           const Tensor& router_stats, const Tensor& choices) const {
  nn::Saved dropped;
  attention_forward(ctx, flow, batch, recompute == Recompute::kLayer ? dropped : saved);
  const Tensor at_attention = flow.stream;
  const Tensor experts = moe_forward(ctx, flow, recompute == Recompute::kNone ? saved : dropped, router_stats, choices);
  if (recompute == Recompute::kNone) return;
  saved.push("layer.stream", recompute == Recompute::kLayer ? at_attention : flow.stream);
  saved.push("layer.experts", experts);
}

void DecoderLayer::backward(Context& ctx, nn::Flow& gradient, const nn::Batch& batch, Recompute recompute, nn::Saved& saved,
                            const nn::Router::AuxLosses& aux) const {
  nn::Saved again;
  if (recompute != Recompute::kNone) {
    const Tensor experts = saved.pop("layer.experts");
    nn::Flow flow{.stream = saved.pop("layer.stream")};
    if (recompute == Recompute::kLayer) attention_forward(ctx, flow, batch, again);
    moe_forward(ctx, flow, again, {}, experts);
  }
  moe_backward(ctx, gradient, recompute == Recompute::kNone ? saved : again, aux);
  attention_backward(ctx, gradient, batch, recompute == Recompute::kLayer ? again : saved);
}

std::string DecoderLayer::plan(const Context& ctx) const {
  return attention_norm_.plan(ctx) + moe_norm_.plan(ctx) + moe_.plan(ctx);
}

std::vector<const Parameter*> DecoderLayer::parameters() const {
  std::vector<const Parameter*> all = attention_norm_.parameters();
  const auto append = [&](const std::vector<const Parameter*>& more) { all.insert(all.end(), more.begin(), more.end()); };
  append(attention_.parameters());
  append(moe_norm_.parameters());
  append(moe_.parameters());
  return all;
}

}  // namespace cistron::model
