// cistron bench train: whole steps (forward, backward, clip, optimizer) on random tokens.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench_profile.h"
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
  std::vector<std::string> overrides;
  int64_t layers = 0, vocabulary = 0, batch = 8, seq = 512, steps = 10;
  double clip = 1.0;
  bool profile = false;
};

using Clock = std::chrono::steady_clock;

train::EngineOptions engine_options(const Options& o, const Device& device) {
  train::RunConfig config = train::parse_config(fmt::format("[model]\npreset = \"{}\"", o.preset), "--preset", o.overrides);
  if (o.layers > 0) config.model.layers = o.layers;
  if (o.vocabulary > 0) config.model.vocabulary = o.vocabulary;
  config.model.context = std::max(config.model.context, o.seq);
  config.model.validate();  // which fills in what is left out
  config.recipe = o.recipe != "auto" ? o.recipe : device.is_cuda() || cpu::has_fast_bf16() ? "bf16" : "fp32";
  config.experts = o.experts;
  if (device.is_cuda() && o.experts == "loop")
    throw Error(ErrorKind::kUsage, "the loop over experts runs on the CPU alone", "--experts loop", "use --device cpu");
  config.train.recompute = o.recompute;
  config.device.kind = device.is_cuda() ? "cuda" : "cpu";
  config.model.validate();
  train::check_mxfp8(config);
  return {.model = config.model,
          .device = device,
          .precision = config.precision(),
          .recompute = config.recompute(),
          .experts = config.experts_kind(),
          .mxfp8 = config.mxfp8_layers(),
          .require_fused = config.require_fused,
          .micro_batch_tokens = o.batch * o.seq,
          .storage = config.storage(),
          .clip = o.clip};
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

double seconds_between(Clock::time_point a, Clock::time_point b) { return std::chrono::duration<double>(b - a).count(); }

struct StepTimes {
  std::vector<double> seconds;  // of each step
  double cpu_seconds = 0.0;     // of a step, by all threads of the host: other programs on its cores disturb it less
};

// From one result to the next, so that on a device with a queue the host's part counts only where the device waits for it.
StepTimes time_steps(train::Engine& engine, const data::PackedBatch& packed, int64_t steps) {
  const nn::Batch batch = nn::view_of(packed);
  StepTimes times;
  constexpr int64_t kWarmUp = 3;
  auto last = Clock::now();
  std::clock_t begin = 0;
  for (int64_t i = 0; i < kWarmUp + steps + engine.ahead(); ++i) {
    if (i < kWarmUp + steps) engine.queue_step(std::span(&batch, 1), static_cast<double>(packed.label_count), 1e-4);
    if (i < engine.ahead()) continue;
    if (!engine.next_result().finite)
      throw Error(ErrorKind::kFailed, "a number that is not finite", "bench train", "report this");
    const auto now = Clock::now();
    if (i >= kWarmUp + engine.ahead()) times.seconds.push_back(seconds_between(last, now));
    if (i == kWarmUp + engine.ahead() - 1) begin = std::clock();
    last = now;
  }
  times.cpu_seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / static_cast<double>(steps);
  return times;
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

struct Measured {
  train::EngineOptions options;
  train::MemoryPlan plan;
  double seconds = 0.0, cpu_seconds = 0.0, tflops = 0.0;
  int64_t launches = 0;
  Ceilings ceilings;  // zero: not measured
  int threads = 0;
  [[nodiscard]] double tokens_per_second() const { return static_cast<double>(options.micro_batch_tokens) / seconds; }
  [[nodiscard]] std::string recipe() const {
    if (const int64_t group = mx_group(options.precision); group > 0) return fmt::format("mxfp8/{}", group);
    return options.precision == Precision::kBF16 ? "bf16" : "fp32";
  }
};

void print_text(const Options& o, const Measured& m) {
  fmt::print(
      "{} {} layers, {} x {}, {}, {} experts, {}: {:.1f} ms a step, {} tokens/s, {:.3f} TFLOP/s\n{}\npeak resident {:.1f} MB\n",
      o.preset, m.options.model.layers, o.batch, o.seq, m.recipe(), o.experts,
      m.options.device.is_cuda() ? to_string(m.options.device) : fmt::format("{} threads", m.threads), 1e3 * m.seconds,
      train::with_commas(static_cast<int64_t>(m.tokens_per_second())), m.tflops, m.plan.report(),
      static_cast<double>(peak_resident_bytes()) / 1e6);
  if (m.launches > 0) fmt::print("{} kernels a step\n", m.launches);
  if (m.ceilings.tflops > 0)
    fmt::print("D {:.{}f} TFLOP/s, C {:.{}f} GB/s; the step's products at {:.1f}% of D\n", m.ceilings.tflops,
               m.options.device.is_cuda() ? 0 : 3, m.ceilings.gigabytes_per_second, m.options.device.is_cuda() ? 0 : 1,
               100 * m.tflops / m.ceilings.tflops);
}

nlohmann::ordered_json to_json(const Options& o, const Measured& m) {
  nlohmann::ordered_json line{
      {"name", "train"},
      {"device", m.options.device.is_cuda() ? "cuda" : "cpu"},
      {"recipe", m.recipe()},
      {"variant", o.experts},
      {"shape",
       {{"preset", o.preset}, {"layers", m.options.model.layers}, {"batch", o.batch}, {"seq", o.seq}, {"threads", m.threads}}},
      {"milliseconds", 1e3 * m.seconds},
      {"cpu_milliseconds", 1e3 * m.cpu_seconds},
      {"tflops", m.tflops},
      {"tokens_per_second", m.tokens_per_second()},
      {"percent_of_ceiling", nullptr},
      {"host_syncs", 0},
      {"launches", nullptr},
      {"bytes_saved_per_token", nullptr},
      {"planned_bytes", m.plan.total()},
      {"peak_resident_bytes", peak_resident_bytes()}};
  if (m.launches > 0) line["launches"] = m.launches;
  if (m.ceilings.tflops > 0) line["percent_of_ceiling"] = 100 * m.tflops / m.ceilings.tflops;
  return line;
}

int run_bench_train(const Options& o) {
  const train::EngineOptions options = engine_options(o, choose_device(o));
  Measured m{.options = options, .plan = train::Engine::plan(options)};
  ThreadPool pool(o.threads);
  m.threads = pool.num_threads();
  if (options.device.is_cuda() || o.profile) m.ceilings = measure_ceilings(options.device, options.precision, &pool);
  train::Engine engine(options, m.plan, &pool);
  engine.initialise(1);
  const data::PackedBatch packed = random_batch(o, options.model.vocabulary);
  auto [seconds, cpu_seconds] = time_steps(engine, packed, o.steps);
  m.cpu_seconds = cpu_seconds;
  std::ranges::nth_element(seconds, seconds.begin() + std::ssize(seconds) / 2);
  m.seconds = seconds[seconds.size() / 2];
  m.tflops = flops_of_step(options.model, options.micro_batch_tokens, o.seq) / m.seconds / 1e12;
  m.launches = engine.launches();
  if (o.json) {
    fmt::print("{}", json_line(to_json(o, m)));
  } else {
    print_text(o, m);
  }
  if (o.profile) {
    const nn::Batch batch = nn::view_of(packed);
    const double pairs = static_cast<double>(o.batch) * static_cast<double>(o.seq) * static_cast<double>(o.seq + 1) / 2;
    constexpr int kSteps = 5;
    std::vector<std::vector<ops::TimedOperation>> steps;
    for (int i = 0; i < kSteps; ++i)
      steps.push_back(engine.profile(std::span(&batch, 1), static_cast<double>(packed.label_count)));
    print_profile(summarise(steps, m.ceilings, pairs), o.json);
  }
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
  verb->add_option("--set", o->overrides, "Override a key of the preset: model.experts=64")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  verb->add_option("--layers", o->layers, "Instead of the preset's")->check(positive);
  verb->add_option("--vocabulary", o->vocabulary, "Instead of the preset's")->check(positive);
  verb->add_option("--clip", o->clip, "Of the gradient's norm; 0: none")->check(CLI::NonNegativeNumber)->capture_default_str();
  verb->add_flag("--profile", o->profile,
                 "Five more steps, operation by operation: medians, shares, rates, and ratios to D or C");
  verb->add_option("--batch", o->batch, "Sequences in a step")->check(positive)->capture_default_str();
  verb->add_option("--seq", o->seq, "Tokens of each, at least 2")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30))
      ->capture_default_str();
  verb->add_option("--recipe", o->recipe, "auto, fp32, bf16 or mxfp8")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "mxfp8"}))
      ->capture_default_str();
  verb->add_option("--experts", o->experts, "grouped or loop")->check(CLI::IsMember({"grouped", "loop"}))->capture_default_str();
  verb->add_option("--recompute", o->recompute, "none, mlp or layer")
      ->check(CLI::IsMember({"none", "mlp", "layer"}))
      ->capture_default_str();
  verb->add_option("--steps", o->steps, "Steps that are timed")->check(positive)->capture_default_str();
  verb->callback([o, &run] { run = [o] { return run_bench_train(*o); }; });
  add_bench_moe(*bench, run);
  add_bench_kernels(*bench, run);
}

}  // namespace cistron::apps
