#pragma once
// A Mixtral-style decoder: embedding, layers of attention and mixture of experts, final norm, head fused with the loss.
// Jiang et al., "Mixtral of experts" (2024).
#include <memory>
#include <span>
#include <vector>

#include "cistron/core/step_state.h"
#include "cistron/dist/mesh.h"
#include "cistron/model/config.h"
#include "cistron/model/mxfp8_layers.h"
#include "cistron/nn/batch.h"
#include "cistron/nn/sequential.h"

namespace cistron::model {

class DecoderLayer;

/// What forward keeps. `mlp`: the MoE block's insides are computed again in backward; `layer`: the whole layer's. The choice of
/// experts is always kept.
enum class Recompute : uint8_t { kNone, kMlp, kLayer };

/// How the experts run: one grouped product for all, or a plain loop over them (the baseline).
enum class Experts : uint8_t { kGrouped, kLoop };

/// Sums over the micro-batches of a step; on the context's device. Zeroed by whoever owns them.
struct Losses {
  Tensor cross_entropy;  // [1] f64: sum over tokens of loss_weight x negative log-likelihood
  Tensor router;         // [2E + 3] f64, as ops/router.h lays it out: the routing of all layers
};
Losses empty_losses(const Context& ctx, const ModelConfig& config);

/// The mean losses that go into the log, from the host's copy of `Losses::router`.
struct RouterSummary {
  double aux_loss = 0.0;  // Hugging Face's load_balancing_loss_func, without its coefficient
  double z_loss = 0.0;    // mean of lse^2, without its coefficient
  double entropy = 0.0;   // mean over routings of the entropy of the probabilities, nats
  double load_max_over_mean = 0.0;
};
RouterSummary summarise_router(const Tensor& router_stats, int64_t experts);

struct DecoderOptions {
  Experts experts = Experts::kGrouped;
  dist::MeshShape mesh;
  int rank = 0;
  Mxfp8Layers mxfp8;
};

class Decoder {
 public:
  /// The whole model, or what rank `rank` of a mesh holds of it: its part of the experts, and everything else. Throws as
  /// `dist::experts_of`.
  explicit Decoder(const ModelConfig& config, const DecoderOptions& options = {});
  ~Decoder();
  Decoder(const Decoder&) = delete;  // parameters are known by their addresses
  Decoder& operator=(const Decoder&) = delete;

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  /// In the order of the forward pass.
  [[nodiscard]] std::vector<const Parameter*> parameters() const;
  /// What runs, forward and backward, where the fuser has a say: lines for each run of layers that are alike.
  [[nodiscard]] std::string plan(const Context& ctx) const;
  /// Throws Error(kUsage) where a layer's experts would run unfused, with the predicates that refused.
  void require_fused(const Context& ctx) const;

  /// One micro-batch of training: adds to `losses`, and to the gradient of
  ///   state.loss_scale x cross_entropy + router_scale x (aux_loss x balance + z_loss x z)
  /// where router_scale is this micro-batch's share of the step. The routing statistics behind the auxiliary
  /// losses are this micro-batch's own. On a mesh, `batch` is this rank's part of the micro-batch, maybe empty; `losses.router`
  /// gets the whole micro-batch's sums, and the rest (cross_entropy, gradients) this rank's part of what is to be added up.
  void train_step(Context& ctx, const nn::Batch& batch, const StepState& state, Losses& losses, Recompute recompute,
                  float router_scale = 1.0F);
  /// Forward only: writes nll [T] f32 (0 where there is no label) and adds to `losses`.
  void evaluate(Context& ctx, const nn::Batch& batch, const Tensor& nll, Losses& losses);
  /// Forward only: logits [T, V] f32 of every token, for small inputs.
  Tensor logits(Context& ctx, const nn::Batch& batch);
  /// Forward only: the final norm's output [T, H]. With `caches`, one a layer, the batch's keys and values are kept there, and
  /// tokens go on with earlier ones (nn/batch.h).
  Tensor hidden_states(Context& ctx, const nn::Batch& batch, const Tensor& router_stats, std::span<const Tensor> caches = {});
  /// The head on its own: logits [N, V] f32 of final norm outputs [N, H].
  void head_logits(Context& ctx, const Tensor& normed, const Tensor& logits);
  /// The loss on its own, as `evaluate` writes it: nll [T] f32 of the labels; adds to cross_entropy.
  void head_nll(Context& ctx, const Tensor& normed, const nn::Batch& batch, const Tensor& nll, const Tensor& cross_entropy);

 private:
  Tensor embed(Context& ctx, const nn::Batch& batch);
  [[nodiscard]] const Parameter& head() const { return config_.tied_head ? embedding_ : head_; }

  ModelConfig config_;
  Parameter embedding_, head_;
  nn::Sequential final_norm_;
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
};

}  // namespace cistron::model
