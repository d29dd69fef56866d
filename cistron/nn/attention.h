#pragma once
#include <string>

#include "cistron/nn/batch.h"
#include "cistron/nn/linear.h"
#include "cistron/nn/operation.h"
#include "cistron/ops/attention.h"

namespace cistron::nn {

/// Grouped-query self-attention with rotary positions over packed sequences: qkv product, clamp, rotation, attention, output
/// product.
class SelfAttention {
 public:
  struct Options {
    std::string name;
    int64_t hidden = 0;
    ops::AttentionShape shape;
    float rope_theta = 1e4F;
    float clip_qkv = 0.0F;  // 0: none
    bool causal = true;
    float init_std = 0.02F;
    bool mxfp8 = false;  // the two products, where the recipe says so
  };
  explicit SelfAttention(const Options& options);

  /// Of x, or of mx where that is what flows.
  Tensor forward(Context& ctx, const Flow& in, const Batch& batch, Saved& saved) const;
  Tensor backward(Context& ctx, const Tensor& dy, const Batch& batch, Saved& saved) const;

  [[nodiscard]] std::vector<const Parameter*> parameters() const { return {&qkv_.weight(), &out_.weight()}; }

 private:
  [[nodiscard]] float scale() const;
  /// Attention over the batch itself or, without cu_seqlens, over its cache.
  Tensor attend(Context& ctx, const Tensor& qkv, const Batch& batch, Saved& saved) const;

  Options options_;
  Linear qkv_, out_;
};

}  // namespace cistron::nn
