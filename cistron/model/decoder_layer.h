#pragma once
#include <optional>
#include <string>

#include "cistron/model/config.h"
#include "cistron/model/decoder.h"
#include "cistron/nn/attention.h"
#include "cistron/nn/moe.h"
#include "cistron/nn/rms_norm.h"

namespace cistron::model {

struct LayerOptions {
  std::string name;
  bool loop = false;                                  // over the experts
  std::optional<dist::Range> held;                    // as MoeBlock::Options
  bool mxfp8_experts = true, mxfp8_attention = true;  // where the recipe says so
};

/// h = x + attention(norm(x));  y = h + moe(norm(h)). T tokens, H hidden.
class DecoderLayer {
 public:
  DecoderLayer(const ModelConfig& config, const LayerOptions& options);

  /// x [T, H] to y [T, H]; what backward needs, by the recompute policy, goes to `saved`. `router_stats` may be undefined; with
  /// `choices` [T, k] defined, those experts are taken.
  Tensor forward(Context& ctx, const Tensor& x, const nn::Batch& batch, Recompute recompute, nn::Saved& saved,
                 const Tensor& router_stats, const Tensor& choices) const;
  /// `dx` holds dy on entry and the gradient of x on return.
  void backward(Context& ctx, const Tensor& dx, const nn::Batch& batch, Recompute recompute, nn::Saved& saved,
                const nn::Router::AuxLosses& aux) const;

  [[nodiscard]] std::vector<const Parameter*> parameters() const;
  /// As MoeBlock's.
  [[nodiscard]] std::string unfused(const Context& ctx) const { return moe_.unfused(ctx); }

 private:
  Tensor attention_forward(Context& ctx, const Tensor& x, const nn::Batch& batch, nn::Saved& saved) const;
  struct MoeOutput {
    Tensor y, experts;
  };
  MoeOutput moe_forward(Context& ctx, const nn::RmsNorm::Sum& h, nn::Saved& saved, const Tensor& stats,
                        const Tensor& replay) const;
  void attention_backward(Context& ctx, const Tensor& dx, const nn::Batch& batch, nn::Saved& saved) const;
  void moe_backward(Context& ctx, const Tensor& dx, nn::Saved& saved, const nn::Router::AuxLosses& aux) const;

  nn::RmsNorm attention_norm_, moe_norm_;
  nn::SelfAttention attention_;
  nn::MoeBlock moe_;
};

}  // namespace cistron::model
