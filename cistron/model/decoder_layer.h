#pragma once
#include <optional>
#include <string>

#include "cistron/model/config.h"
#include "cistron/model/decoder.h"
#include "cistron/nn/attention.h"
#include "cistron/nn/moe.h"
#include "cistron/nn/sequential.h"

namespace cistron::model {

struct LayerOptions {
  std::string name;
  bool loop = false;                                  // over the experts
  std::optional<dist::Range> held;                    // as MoeBlock::Options
  bool mxfp8_experts = true, mxfp8_attention = true;  // where the recipe says so
};

/// stream += x;  stream += attention(norm(stream));  x = moe(norm(stream)), which the next norm adds. T tokens, H hidden.
class DecoderLayer {
 public:
  DecoderLayer(const ModelConfig& config, const LayerOptions& options);

  /// The stream and what the layer before gave, both [T, H], to the same of this layer; before the first layer x is undefined.
  /// What backward needs, by the recompute policy, goes to `saved`. `router_stats` may be undefined; with `choices` [T, k]
  /// defined, those experts are taken.
  void forward(Context& ctx, nn::Flow& flow, const nn::Batch& batch, Recompute recompute, nn::Saved& saved,
               const Tensor& router_stats, const Tensor& choices) const;
  void backward(Context& ctx, nn::Flow& gradient, const nn::Batch& batch, Recompute recompute, nn::Saved& saved,
                const nn::Router::AuxLosses& aux) const;

  [[nodiscard]] std::vector<const Parameter*> parameters() const;
  /// What runs of its norms and experts, and what refused to be fused: Sequential::plan of each.
  [[nodiscard]] std::string plan(const Context& ctx) const;
  /// Of the experts, as MoeBlock's.
  [[nodiscard]] std::string unfused(const Context& ctx) const { return moe_.unfused(ctx); }

 private:
  void attention_forward(Context& ctx, nn::Flow& flow, const nn::Batch& batch, nn::Saved& saved) const;
  /// Gives the chosen experts.
  Tensor moe_forward(Context& ctx, nn::Flow& flow, nn::Saved& saved, const Tensor& stats, const Tensor& replay) const;
  void attention_backward(Context& ctx, nn::Flow& gradient, const nn::Batch& batch, nn::Saved& saved) const;
  void moe_backward(Context& ctx, nn::Flow& gradient, nn::Saved& saved, const nn::Router::AuxLosses& aux) const;

  nn::Sequential attention_norm_, moe_norm_;
  nn::SelfAttention attention_;
  nn::MoeBlock moe_;
};

}  // namespace cistron::model
