#include "apps/step_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

#include "cistron/core/error.h"
#include "cistron/core/rng.h"
#include "cistron/cpu/fast/onednn.h"
#include "cistron/ops/elementwise.h"
#include "cistron/train/config.h"

namespace cistron::apps {

namespace {

using Clock = std::chrono::steady_clock;

// Two a parameter forward and four backward, and the two products of causal attention, of which half is masked.
double flops_of_step(const model::ModelConfig& c, int64_t tokens, int64_t seq) {
  const auto table = static_cast<double>(c.tied_head ? 0 : c.vocabulary * c.hidden);
  const double products = 6.0 * (static_cast<double>(c.active_parameters()) - table);
  const double attention = 6.0 * static_cast<double>(c.layers * c.heads * c.head_dim * seq);
  return (products + attention) * static_cast<double>(tokens);
}

double seconds_between(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); }

// The loop reads the counts forward, where that is computed again as well, and backward.
int64_t host_syncs(const train::EngineOptions& o) {
  if (!o.device.is_cuda() || o.experts != model::Experts::kLoop) return 0;
  return o.model.layers * (o.recompute == model::Recompute::kNone ? 2 : 3);
}

// As a new run's, but of repeated numbers: to draw billions of normal ones takes longer than the steps.
void start(train::Engine& engine) {
  Context& ctx = engine.context();
  uint64_t stream = 0;
  for (const auto& entry : engine.parameters().entries()) {
    const bool norm = entry.parameter->init == Init::kOnes;
    fill_random(ctx, entry.master, ++stream, norm ? 1.0 : 0.0, norm ? 0.0 : entry.parameter->init_std * std::sqrt(12.0));
    for (const Tensor& state : {entry.m, entry.v, entry.m_scale, entry.v_scale})
      if (state.defined()) ops::zero(ctx, {.out = state});
  }
  engine.refresh_working();
  engine.restart();
}

StepTime climb_rung(const Rung& rung, const Device& device, ThreadPool& pool, const StepShape& shape, int64_t steps) {
  train::EngineOptions options =
      step_options(shape, device, rung.recipe.substr(0, rung.recipe.find('/')), rung.loop ? "loop" : "grouped");
  options.fuse = rung.fuse;
  options.require_fused = rung.fuse;
  const train::MemoryPlan plan = train::Engine::plan(options);
  train::Engine engine(options, plan, &pool);
  StepTime time = time_steps(engine, options, shape, random_batch(shape, options.model.vocabulary), steps);
  time.plan = plan;
  return time;
}

}  // namespace

train::EngineOptions step_options(const StepShape& s, const Device& device, const std::string& recipe,
                                  const std::string& experts) {
  train::RunConfig config = train::parse_config(fmt::format("[model]\npreset = \"{}\"", s.preset), "--preset", s.overrides);
  if (s.layers > 0) config.model.layers = s.layers;
  if (s.vocabulary > 0) config.model.vocabulary = s.vocabulary;
  config.model.context = std::max(config.model.context, s.seq);
  config.recipe = recipe != "auto" ? recipe : device.is_cuda() || cpu::has_fast_bf16() ? "bf16" : "fp32";
  config.experts = experts;
  config.train.recompute = s.recompute;
  config.device.kind = device.is_cuda() ? "cuda" : "cpu";
  config.model.validate();  // which fills in what is left out
  train::check_mxfp8(config);
  return {.model = config.model,
          .device = device,
          .precision = config.precision(),
          .recompute = config.recompute(),
          .experts = config.experts_kind(),
          .mxfp8 = config.mxfp8_layers(),
          .require_fused = config.require_fused,
          .micro_batch_tokens = s.batch * s.seq,
          .record = experts != "loop",
          .storage = config.storage(),
          .clip = s.clip};
}

std::string recipe_name(Precision precision) {
  if (const int64_t group = mx_group(precision); group > 0) return fmt::format("mxfp8/{}", group);
  return precision == Precision::kBF16 ? "bf16" : "fp32";
}

data::PackedBatch random_batch(const StepShape& shape, int64_t vocabulary) {
  data::PackedBatch batch;
  const Rng rng(1, 0);
  uint64_t i = 0;
  for (int64_t s = 0; s < shape.batch; ++s) {
    for (int32_t& token : batch.open_sequence(shape.seq))
      token = static_cast<int32_t>(rng.below(i++, static_cast<uint64_t>(vocabulary)));
    batch.close_sequence();
  }
  return batch;
}

// From one result to the next, so that on a device with a queue the host's part counts only where the device waits for it.
StepTime time_steps(train::Engine& engine, const train::EngineOptions& options, const StepShape& shape,
                    const data::PackedBatch& packed, int64_t steps) {
  start(engine);
  const nn::Batch batch = nn::view_of(packed);
  constexpr int64_t kWarmUp = 3;
  std::vector<double> seconds;
  auto last = Clock::now();
  std::clock_t begin = 0;
  for (int64_t i = 0; i < kWarmUp + steps + engine.ahead(); ++i) {
    if (i < kWarmUp + steps) engine.queue_step(std::span(&batch, 1), static_cast<double>(packed.label_count), 1e-4);
    if (i < engine.ahead()) continue;
    if (!engine.next_result().finite)
      throw Error(ErrorKind::kFailed, "a number that is not finite", "bench train", "report this");
    const auto now = Clock::now();
    if (i >= kWarmUp + engine.ahead()) seconds.push_back(seconds_between(last, now));
    if (i == kWarmUp + engine.ahead() - 1) begin = std::clock();
    last = now;
  }
  StepTime time{.variant = options.experts == model::Experts::kLoop ? "loop" : "grouped",
                .recipe = recipe_name(options.precision),
                .layers = options.model.layers,
                .tokens = options.micro_batch_tokens,
                .seconds = median_of(seconds),
                .cpu_seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / static_cast<double>(steps),
                .launches = engine.launches(),
                .host_syncs = host_syncs(options)};
  time.tflops = flops_of_step(options.model, time.tokens, shape.seq) / time.seconds / 1e12;
  return time;
}

void climb_steps(const Device& device, ThreadPool& pool, const StepShape& shape, int64_t steps,
                 const std::function<void(const StepTime&)>& show) {
  for (const Rung& rung : rungs_of(device, /*ablate=*/true)) {
    StepTime time;
    try {
      time = climb_rung(rung, device, pool, shape, steps);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage && error.kind() != ErrorKind::kOutOfSpace) throw;
      time.refusal = error.what();
    }
    time.variant = rung.variant;
    time.recipe = rung.recipe;
    show(time);
  }
}

}  // namespace cistron::apps
