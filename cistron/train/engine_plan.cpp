#include <algorithm>

#include "cistron/core/error.h"
#include "cistron/dist/meta.h"
#include "cistron/ops/device_memory.h"
#include "cistron/train/engine.h"
#include "cistron/train/what_would_fit.h"

namespace cistron::train {

namespace {

std::string megabytes(int64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); }

// In double, before sizes in 64 bits overflow; a bound from below, since only absurd sizes are refused here.
void check_sizes(const EngineOptions& options) {
  constexpr double kMostBytes = 0x1p50, kMostRows = 0x1p31;  // rows are counted in 32 bits
  const auto real = [](int64_t size) { return static_cast<double>(size); };
  const auto& c = options.model;
  const double tokens = real(std::max(options.micro_batch_tokens, options.eval_batch_tokens));
  const double attention = real(c.head_dim) * (2 * real(c.heads) + 2 * real(c.kv_heads));
  const double experts = real(c.experts) * (3 * real(c.intermediate) + 1);
  const double parameters = real(c.hidden) * (real(c.layers) * (attention + experts) + real(c.vocabulary));
  const double activations =
      tokens * (real(c.layers) * (real(c.hidden) + real(c.top_k) * real(c.intermediate)) + real(c.vocabulary));
  if (tokens * real(c.top_k) >= kMostRows)
    throw Error(ErrorKind::kUsage, fmt::format("{:.0f} tokens in one piece, each to {} experts, are too many", tokens, c.top_k),
                "the batch", "stay under 2^31 in all: lower train.micro_batch_tokens or data.context (of bench: --batch, --seq)");
  if (const double bytes = 16 * parameters + 4 * activations; bytes > kMostBytes)
    throw Error(ErrorKind::kOutOfSpace, fmt::format("training needs over {:.0f} TB of memory", bytes / 1e12), "the model",
                "check its sizes in [model], and those of the batch");
}

void check_update(const EngineOptions& options) {
  if (!options.storage.masters && options.precision != Precision::kBF16)
    throw Error(ErrorKind::kUsage, "only bf16 weights are their own masters", "optimizer.masters",
                "leave \"none\" out, or set precision.recipe = \"bf16\"");
  if (options.storage.gradients) return;
  const auto refuse = [](const char* what, const char* advice) {
    throw Error(ErrorKind::kUsage, what, "optimizer.update_in_backward", advice);
  };
  if (options.clip > 0)
    refuse("clipping needs the norm of all gradients before any is used", "set optimizer.clip = 0, or leave it out");
  if (options.micro_batches > 1)
    refuse("gradients of several micro-batches must be kept",
           "set train.micro_batch_tokens = train.batch_tokens, or leave it out");
  if (options.sharing.shape.size() > 1) refuse("ranks add their gradients up first", "leave it out, or use one rank");
}

}  // namespace

model::DecoderOptions decoder_options(const EngineOptions& options) {
  return {.experts = options.experts, .mesh = options.sharing.shape, .rank = options.sharing.rank, .mxfp8 = options.mxfp8};
}

std::string MemoryPlan::report() const {
  const std::string on_the_way = gathered > 0 ? ", gathered " + megabytes(gathered) : "";
  return fmt::format("memory {}: parameters {}, gradients {}, optimizer {}{}, activations {}", megabytes(total()),
                     megabytes(parameters), megabytes(gradients), megabytes(optimizer), on_the_way, megabytes(activations));
}

Engine::Arenas Engine::meta_arenas() {
  return {.parameters = {.parameters = Arena::meta("parameters"),
                         .gradients = Arena::meta("gradients"),
                         .optimizer = Arena::meta("optimizer"),
                         .gathered = Arena::meta("gathered")},
          .activations = Arena::meta("activations")};
}

Engine::Arenas Engine::planned_arenas(const MemoryPlan& plan, const EngineOptions& options) {
  const Device& device = options.device;
  const int64_t available = ops::available_memory(device);
  if (plan.total() > available)
    throw Error(ErrorKind::kOutOfSpace, "not enough memory",
                fmt::format("{}; {} bytes are available on {}", plan.report(), available, to_string(device)),
                what_would_fit(options, available));
  const auto arena = [&](const char* name, int64_t bytes) {
    return Arena::planned(name, device, ops::device_memory(device), bytes);
  };
  try {
    return {.parameters = {.parameters = arena("parameters", plan.parameters),
                           .gradients = arena("gradients", plan.gradients),
                           .optimizer = arena("optimizer", plan.optimizer),
                           .gathered = arena("gathered", plan.gathered)},
            .activations = arena("activations", plan.activations)};
  } catch (const Error& error) {
    throw Error(error.kind(), error.what(), plan.report(), "something else took memory meanwhile: try again");
  }
}

MemoryPlan Engine::plan(const EngineOptions& options) {
  check_sizes(options);
  check_update(options);
  const auto mesh = dist::meta_mesh(options.sharing.shape, options.sharing.rank);
  Engine engine(options, meta_arenas(), Device{DeviceKind::kMeta}, nullptr, mesh.get());
  if (options.require_fused) engine.decoder_.require_fused(engine.ctx_);
  const auto batch = [](int64_t tokens) { return nn::meta_batch(tokens, tokens); };  // of one-token sequences at worst
  const std::vector<nn::Batch> batches(static_cast<size_t>(std::min<int64_t>(options.micro_batches, 2)),
                                       batch(options.micro_batch_tokens));
  for (int pass = 0; pass < 2; ++pass) {  // the first shows the order in which weights are gathered, the second gathers ahead
    engine.step(batches, 1.0, 0.0);
    if (options.eval_batch_tokens > 0) engine.evaluate(batch(options.eval_batch_tokens));
  }
  return engine.peak();
}

std::string Engine::fusions(const EngineOptions& options) {
  check_sizes(options);
  const model::Decoder decoder(options.model, decoder_options(options));
  return decoder.plan(
      {.device = Device{DeviceKind::kMeta}, .planned = options.device, .precision = options.precision, .fuse = options.fuse});
}

}  // namespace cistron::train
