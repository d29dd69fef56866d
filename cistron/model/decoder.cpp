#include "cistron/model/decoder.h"

#include <algorithm>
#include <numeric>

#include "cistron/core/error.h"
#include "cistron/model/decoder_layer.h"
#include "cistron/nn/residual.h"
#include "cistron/nn/rms_norm.h"
#include "cistron/ops/cross_entropy.h"
#include "cistron/ops/elementwise.h"
#include "cistron/ops/embedding.h"
#include "cistron/ops/matmul.h"

namespace cistron::model {

Losses empty_losses(const Context& ctx, const ModelConfig& config) {
  return {.cross_entropy = ctx.empty({1}, DType::kF64), .router = ctx.empty({2 * config.experts + 3}, DType::kF64)};
}

RouterSummary summarise_router(const Tensor& router_stats, int64_t experts) {
  const auto stats = router_stats.span<double>();
  const auto choices = stats.first(static_cast<size_t>(experts));
  const auto probs = stats.subspan(static_cast<size_t>(experts), static_cast<size_t>(experts));
  const auto rest = stats.last(3);
  const double routings = std::max(rest[2], 1.0);
  const double total_choices = std::max(std::accumulate(choices.begin(), choices.end(), 0.0), 1.0);
  const auto e = static_cast<double>(experts);
  return {.aux_loss = e * std::inner_product(choices.begin(), choices.end(), probs.begin(), 0.0) / (routings * routings),
          .z_loss = rest[0] / routings,
          .entropy = rest[1] / routings,
          .load_max_over_mean = e * *std::max_element(choices.begin(), choices.end()) / total_choices};
}

namespace {

// Of one layer; undefined: the router's own.
Tensor choices_of(const nn::Batch& batch, int64_t layer) {
  if (!batch.choices.defined()) return {};
  return batch.choices.rows(layer * batch.num_tokens(), batch.num_tokens());
}

ModelConfig validated(ModelConfig config) {
  config.validate();
  return config;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const DecoderOptions& options)
    : config_(validated(config)),
      final_norm_(nn::Residual{},
                  nn::RmsNorm({.name = "final_norm", .hidden = config_.hidden, .eps = static_cast<float>(config_.rms_eps)})) {
  const auto std = static_cast<float>(config_.init_std);
  const Shape table{config_.vocabulary, config_.hidden};
  embedding_ = {.name = "embedding", .shape = table, .init_std = std};
  head_ = {.name = "head", .shape = table, .init_std = std};
  LayerOptions of_layer{.loop = options.experts == Experts::kLoop, .held = {}};
  if (const auto& mesh = options.mesh; mesh.ep > 1)
    of_layer.held = dist::experts_of(config_.experts, mesh.ep, mesh.ep_index(options.rank));
  for (int64_t i = 0; i < config_.layers; ++i) {
    of_layer.name = fmt::format("layers.{}", i);
    of_layer.mxfp8_experts = options.mxfp8.experts_of(i, config_.layers);
    of_layer.mxfp8_attention = of_layer.mxfp8_experts && options.mxfp8.attention;
    layers_.push_back(std::make_unique<DecoderLayer>(config_, of_layer));
  }
}

Decoder::~Decoder() = default;

std::vector<const Parameter*> Decoder::parameters() const {
  std::vector<const Parameter*> all{&embedding_};
  for (const auto& layer : layers_) {
    const auto some = layer->parameters();
    all.insert(all.end(), some.begin(), some.end());
  }
  all.push_back(final_norm_.parameters().front());
  if (!config_.tied_head) all.push_back(&head_);
  return all;
}

std::string Decoder::plan(const Context& ctx) const {
  std::string text;
  for (size_t first = 0, end = 0; first < layers_.size(); first = end) {
    const std::string lines = layers_[first]->plan(ctx);
    while (end < layers_.size() && layers_[end]->plan(ctx) == lines) ++end;
    text += fmt::format("layers {} to {}\n{}", first, end - 1, lines);
  }
  return text + "after them\n" + final_norm_.plan(ctx);
}

void Decoder::require_fused(const Context& ctx) const {
  for (size_t i = 0; i < layers_.size(); ++i)
    if (const std::string refused = layers_[i]->unfused(ctx); !refused.empty())
      throw Error(ErrorKind::kUsage, fmt::format("the experts of layer {} would run unfused ({})", i, refused),
                  "moe.require_fused", "change what refused, or set it false");
}

Tensor Decoder::embed(Context& ctx, const nn::Batch& batch) {
  Tensor x = ctx.empty({batch.num_tokens(), config_.hidden});
  ops::embedding_forward(ctx, {.table = ctx.weights(embedding_), .tokens = batch.tokens, .out = x});
  ctx.report("embedding", x);
  return x;
}

void Decoder::train_step(Context& ctx, const nn::Batch& batch, const StepState& state, Losses& losses, Recompute recompute,
                         float router_scale) {
  const int64_t tokens = batch.num_tokens();
  nn::Saved saved;
  Tensor stats = ctx.empty(losses.router.shape(), DType::kF64);
  ops::zero(ctx, {.out = stats});
  nn::Flow flow{.stream = embed(ctx, batch)};
  for (size_t i = 0; i < layers_.size(); ++i)
    layers_[i]->forward(ctx, flow, batch, recompute, saved, stats, choices_of(batch, static_cast<int64_t>(i)));
  if (ctx.mesh != nullptr) ctx.mesh->world().all_reduce(stats).wait();
  ops::add(ctx, {.a = losses.router, .b = stats, .out = losses.router});

  final_norm_.run(ctx, flow, saved);
  const Tensor normed = flow.x;
  flow = {};
  Tensor dnormed = ctx.empty(normed.shape()), nll = ctx.empty({tokens}, DType::kF32);
  ops::linear_cross_entropy(ctx, {.x = normed,
                                  .w = ctx.weights(head()),
                                  .labels = batch.labels,
                                  .loss_weight = batch.loss_weight,
                                  .nll = nll,
                                  .loss = losses.cross_entropy,
                                  .state = &state,
                                  .dx = dnormed,
                                  .dw = ctx.grad(head())});
  if (!config_.tied_head) ctx.grad_ready(head_);
  ctx.report("head", nll);
  ctx.report("head (backward)", dnormed);

  const nn::Router::AuxLosses aux{.stats = stats,
                                  .balance = router_scale * static_cast<float>(config_.aux_loss),
                                  .z = router_scale * static_cast<float>(config_.z_loss)};
  nn::Flow gradient{.x = dnormed};
  final_norm_.run_back(ctx, gradient, saved);
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer)
    (*layer)->backward(ctx, gradient, batch, recompute, saved, aux);
  ops::embedding_backward(ctx, {.dy = gradient.stream, .tokens = batch.tokens, .dtable = ctx.grad(embedding_)});
  ctx.grad_ready(embedding_);
}

Tensor Decoder::hidden_states(Context& ctx, const nn::Batch& batch, const Tensor& router_stats, std::span<const Tensor> caches) {
  CISTRON_CHECK(caches.empty() || caches.size() == layers_.size(), "[decoder] {} caches for {} layers", caches.size(),
                layers_.size());
  nn::Flow flow{.stream = embed(ctx, batch)};
  nn::Batch of_layer = batch;
  for (size_t i = 0; i < layers_.size(); ++i) {
    nn::Saved dropped;
    if (!caches.empty()) of_layer.cache = caches[i];
    layers_[i]->forward(ctx, flow, of_layer, Recompute::kNone, dropped, router_stats, {});
  }
  nn::Saved dropped;
  final_norm_.run(ctx, flow, dropped);
  return flow.x;
}

void Decoder::head_logits(Context& ctx, const Tensor& normed, const Tensor& logits) {
  ops::matmul_forward(ctx, {.x = normed, .w = ctx.weights(head()), .out = logits});
}

void Decoder::head_nll(Context& ctx, const Tensor& normed, const nn::Batch& batch, const Tensor& nll,
                       const Tensor& cross_entropy) {
  ops::linear_cross_entropy(ctx, {.x = normed,
                                  .w = ctx.weights(head()),
                                  .labels = batch.labels,
                                  .loss_weight = batch.loss_weight,
                                  .nll = nll,
                                  .loss = cross_entropy});
}

void Decoder::evaluate(Context& ctx, const nn::Batch& batch, const Tensor& nll, Losses& losses) {
  head_nll(ctx, hidden_states(ctx, batch, losses.router), batch, nll, losses.cross_entropy);
}

Tensor Decoder::logits(Context& ctx, const nn::Batch& batch) {
  const Tensor normed = hidden_states(ctx, batch, {});
  Tensor out = ctx.empty({batch.num_tokens(), config_.vocabulary}, DType::kF32);
  head_logits(ctx, normed, out);
  return out;
}

}  // namespace cistron::model
