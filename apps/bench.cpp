// cistron bench train: whole steps (forward, backward, clip, optimizer) on random tokens.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/show.h"
#include "cistron/core/error.h"
#include "cistron/core/rng.h"
#include "cistron/cpu/fast/onednn.h"
#include "cistron/data/pack.h"
#include "cistron/train/config.h"
#include "cistron/train/engine.h"
#include "cistron/train/progress.h"

namespace cistron::apps {

namespace {

struct Options : Common {
  std::string preset = "tiny-protein", recipe = "auto", experts = "grouped", recompute = "none";
  int64_t layers = 0, batch = 8, seq = 512, steps = 10;
};

train::EngineOptions engine_options(const Options& o) {
  train::RunConfig config;
  config.model = model::preset(o.preset);
  if (o.layers > 0) config.model.layers = o.layers;
  config.model.context = std::max(config.model.context, o.seq);
  config.recipe = o.recipe != "auto" ? o.recipe : cpu::has_fast_bf16() ? "bf16" : "fp32";
  config.experts = o.experts;
  config.train.recompute = o.recompute;
  return {.model = config.model,
          .precision = config.precision(),
          .recompute = config.recompute(),
          .experts = config.experts_kind(),
          .micro_batch_tokens = o.batch * o.seq};
}

data::PackedBatch random_batch(const Options& o, int64_t vocabulary) {
  data::PackedBatch batch;
  const Rng rng(1, 0);
  uint64_t i = 0;
  for (int64_t s = 0; s < o.batch; ++s) {
    for (int32_t& token : batch.open_sequence(o.seq))
      token = static_cast<int32_t>(rng.below(i++, static_cast<uint64_t>(vocabulary)));
    batch.close_sequence();
  }
  return batch;
}

// Two a parameter forward and four backward, and the two products of causal attention, of which half is masked.
double flops_of_step(const model::ModelConfig& c, int64_t tokens, int64_t seq) {
  const auto table = static_cast<double>(c.tied_head ? 0 : c.vocabulary * c.hidden);
  const double products = 6.0 * (static_cast<double>(c.active_parameters()) - table);
  const double attention = 6.0 * static_cast<double>(c.layers * c.heads * c.head_dim * seq);
  return (products + attention) * static_cast<double>(tokens);
}

std::vector<double> time_steps(train::Engine& engine, const data::PackedBatch& packed, int64_t steps) {
  const nn::Batch batch = nn::view_of(packed);
  std::vector<double> seconds;
  constexpr int64_t kWarmUp = 2;
  for (int64_t i = 0; i < kWarmUp + steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const auto result = engine.step(std::span(&batch, 1), static_cast<double>(packed.label_count), 1e-4);
    if (!result.finite) throw Error(ErrorKind::kFailed, "a number that is not finite", "bench train", "report this");
    if (i >= kWarmUp) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int run_bench_train(const Options& o) {
  check_device(o);
  const train::EngineOptions options = engine_options(o);
  const auto plan = train::Engine::plan(options);
  ThreadPool pool(o.threads);
  train::Engine engine(options, plan, &pool);
  engine.initialise(1);
  auto seconds = time_steps(engine, random_batch(o, options.model.vocabulary), o.steps);
  std::ranges::nth_element(seconds, seconds.begin() + std::ssize(seconds) / 2);
  const double median = seconds[seconds.size() / 2];
  const int64_t tokens = options.micro_batch_tokens;
  const std::string recipe = options.precision == Precision::kBF16 ? "bf16" : "fp32";
  const double tflops = flops_of_step(options.model, tokens, o.seq) / median / 1e12;
  const double speed = static_cast<double>(tokens) / median;
  if (!o.json) {
    fmt::print(
        "{} {} layers, {} x {}, {}, {} experts, {} threads: {:.1f} ms a step, {} tokens/s, {:.3f} TFLOP/s\n{}\npeak resident "
        "{:.1f} MB\n",
        o.preset, options.model.layers, o.batch, o.seq, recipe, o.experts, pool.num_threads(), 1e3 * median,
        train::with_commas(static_cast<int64_t>(speed)), tflops, plan.report(), static_cast<double>(peak_resident_bytes()) / 1e6);
    return kDone;
  }
  const nlohmann::ordered_json line{{"name", "train"},
                                    {"device", "cpu"},
                                    {"recipe", recipe},
                                    {"variant", o.experts},
                                    {"shape",
                                     {{"preset", o.preset},
                                      {"layers", options.model.layers},
                                      {"batch", o.batch},
                                      {"seq", o.seq},
                                      {"threads", pool.num_threads()}}},
                                    {"milliseconds", 1e3 * median},
                                    {"tflops", tflops},
                                    {"tokens_per_second", speed},
                                    {"percent_of_ceiling", nullptr},  // not measured here
                                    {"host_syncs", 0},
                                    {"launches", nullptr},
                                    {"bytes_saved_per_token", nullptr},
                                    {"planned_bytes", plan.total()},
                                    {"peak_resident_bytes", peak_resident_bytes()}};
  fmt::print("{}", json_line(line));
  return kDone;
}

}  // namespace

void add_bench(CLI::App& app, Run& run) {
  CLI::App* bench = app.add_subcommand("bench", "Measure");
  const std::string example = "cistron bench train --preset tiny-protein --batch 8 --seq 512 --recipe fp32";
  bench->require_subcommand(1);
  bench->footer("Example:\n  " + example);
  const auto o = std::make_shared<Options>();
  CLI::App* verb =
      add_verb(*bench, "train", "Whole training steps on random tokens: forward, backward, clip, optimizer", example, *o);
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 30);
  verb->add_option("--preset", o->preset, "The model's shape")->capture_default_str();
  verb->add_option("--layers", o->layers, "Instead of the preset's")->check(positive);
  verb->add_option("--batch", o->batch, "Sequences in a step")->check(positive)->capture_default_str();
  verb->add_option("--seq", o->seq, "Tokens of each, at least 2")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30))
      ->capture_default_str();
  verb->add_option("--recipe", o->recipe, "auto, fp32 or bf16")
      ->check(CLI::IsMember({"auto", "fp32", "bf16"}))
      ->capture_default_str();
  verb->add_option("--experts", o->experts, "grouped or loop")->check(CLI::IsMember({"grouped", "loop"}))->capture_default_str();
  verb->add_option("--recompute", o->recompute, "none, mlp or layer")
      ->check(CLI::IsMember({"none", "mlp", "layer"}))
      ->capture_default_str();
  verb->add_option("--steps", o->steps, "Steps that are timed")->check(positive)->capture_default_str();
  verb->callback([o, &run] { run = [o] { return run_bench_train(*o); }; });
  add_bench_kernels(*bench, run);
}

}  // namespace cistron::apps
