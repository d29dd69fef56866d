#pragma once
// A small model on random tokens, ready to step: what the decoder's tests share.
#include <numeric>
#include <vector>

#include "cistron/core/rng.h"
#include "cistron/model/decoder.h"
#include "cistron/nn/local_parameters.h"
#include "tests/ops/support.h"

namespace cistron::test {

inline model::ModelConfig small_config() {
  return {.layers = 2,
          .hidden = 48,
          .intermediate = 40,
          .heads = 6,
          .kv_heads = 2,
          .experts = 5,
          .top_k = 2,
          .context = 64,
          .vocabulary = 29,
          .init_std = 0.2,
          .aux_loss = 0.02,
          .z_loss = 0.01};
}

/// Sequences of random tokens, packed; owns the host arrays that the batch views.
class RandomBatch {
 public:
  RandomBatch(const std::vector<int32_t>& lengths, int32_t vocabulary, uint64_t seed) {
    const Rng rng(seed, 1);
    cu_.push_back(0);
    for (const int32_t length : lengths) {
      for (int32_t i = 0; i < length; ++i) {
        tokens_.push_back(static_cast<int32_t>(rng.below(tokens_.size(), static_cast<uint64_t>(vocabulary))));
        positions_.push_back(i);
      }
      cu_.push_back(static_cast<int32_t>(tokens_.size()));
    }
    labels_.assign(tokens_.size(), -1);
    weights_.assign(tokens_.size(), 1.0F);
    for (size_t s = 0; s + 1 < cu_.size(); ++s)
      for (int32_t t = cu_[s]; t + 1 < cu_[s + 1]; ++t) labels_[static_cast<size_t>(t)] = tokens_[static_cast<size_t>(t) + 1];
  }
  [[nodiscard]] nn::Batch batch(Device device = {}) {
    const auto view = [&](auto& values, DType dtype) {
      return Tensor::view(values.data(), {static_cast<int64_t>(values.size())}, dtype, device);
    };
    return {.tokens = view(tokens_, DType::kI32),
            .positions = view(positions_, DType::kI32),
            .cu_seqlens = view(cu_, DType::kI32),
            .labels = view(labels_, DType::kI32),
            .loss_weight = view(weights_, DType::kF32)};
  }
  /// Sequence s alone.
  [[nodiscard]] RandomBatch only(size_t s) const {
    RandomBatch one({}, 1, 0);
    const auto cut = [&](const auto& from, auto& to) { to.assign(from.begin() + cu_[s], from.begin() + cu_[s + 1]); };
    cut(tokens_, one.tokens_);
    cut(positions_, one.positions_);
    cut(labels_, one.labels_);
    cut(weights_, one.weights_);
    one.cu_ = {0, cu_[s + 1] - cu_[s]};
    return one;
  }
  [[nodiscard]] int32_t begin(size_t s) const { return cu_[s]; }

 private:
  std::vector<int32_t> tokens_, positions_, cu_, labels_;
  std::vector<float> weights_;
};

/// A decoder with initialised parameters and zeroed losses on `ctx`.
class SmallModel {
 public:
  SmallModel(Context& ctx, const model::ModelConfig& config, model::Experts experts = model::Experts::kGrouped)
      : decoder(config, {.experts = experts}), parameters(decoder.parameters(), ctx.precision, arenas(ctx)), ctx_(ctx) {
    ctx.parameters = &parameters;
    parameters.initialise(ctx, 3);
    losses = model::empty_losses(ctx, config);
    zero_losses();
  }
  void zero_losses() {
    if (ctx_.device.is_meta()) return;
    for (double& x : losses.cross_entropy.span<double>()) x = 0;
    for (double& x : losses.router.span<double>()) x = 0;
  }
  /// One forward and backward over `batch`, gradients overwritten; gives the objective that the gradients belong to.
  double step(const nn::Batch& batch, model::Recompute recompute = model::Recompute::kNone, float loss_scale = 0.1F) {
    zero_losses();
    parameters.begin_step();
    const StepState state{.loss_scale = loss_scale};
    decoder.train_step(ctx_, batch, state, losses, recompute);
    parameters.check_all_have_grads();
    if (ctx_.device.is_meta()) return 0;
    const auto router = model::summarise_router(losses.router, decoder.config().experts);
    return static_cast<double>(loss_scale) * losses.cross_entropy.span<double>()[0] +
           decoder.config().aux_loss * router.aux_loss + decoder.config().z_loss * router.z_loss;
  }

  model::Decoder decoder;
  nn::LocalParameters parameters;
  model::Losses losses;

 private:
  static nn::ParameterArenas arenas(const Context& ctx) {
    const auto make = [&](const char* name) {
      return ctx.device.is_meta() ? Arena::meta(name) : Arena::growing(name, ctx.device, host_memory());
    };
    return {.parameters = make("parameters"), .gradients = make("gradients"), .optimizer = nullptr};
  }
  Context& ctx_;
};

}  // namespace cistron::test
