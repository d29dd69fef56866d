// cistron bench train: whole steps on random tokens; with --ablate every rung from a loop over experts to the fused MLP.
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench_profile.h"
#include "apps/command.h"
#include "apps/show.h"
#include "apps/step_bench.h"
#include "cistron/train/progress.h"

namespace cistron::apps {

namespace {

struct Options : Common {
  StepShape shape;
  std::string recipe = "auto", experts = "grouped";
  int64_t steps = 10;
  bool profile = false, ablate = false;
};

/// Where it ran.
struct Where {
  Device device;
  int threads;
  Ceilings ceilings;  // zero: not measured

  [[nodiscard]] std::string name() const { return device.is_cuda() ? to_string(device) : fmt::format("{} threads", threads); }
};

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

void print_ceilings(const Where& where, const std::string& end) {
  if (where.ceilings.tflops == 0) return;
  const bool card = where.device.is_cuda();
  fmt::print("D {:.{}f} TFLOP/s, C {:.{}f} GB/s{}\n", where.ceilings.tflops, card ? 0 : 3, where.ceilings.gigabytes_per_second,
             card ? 0 : 1, end);
}

void print_text(const Options& o, const StepTime& t, const Where& where) {
  fmt::print(
      "{} {} layers, {} x {}, {}, {} experts, {}: {:.1f} ms a step, {} tokens/s, {:.3f} TFLOP/s\n{}\npeak resident {:.1f} MB\n",
      o.shape.preset, t.layers, o.shape.batch, o.shape.seq, t.recipe, o.experts, where.name(), 1e3 * t.seconds,
      train::with_commas(static_cast<int64_t>(t.tokens_per_second())), t.tflops, t.plan.report(),
      static_cast<double>(peak_resident_bytes()) / 1e6);
  if (t.launches > 0) fmt::print("{} kernels a step\n", t.launches);
  print_ceilings(where, fmt::format("; the step's products at {:.1f}% of D", 100 * t.tflops / where.ceilings.tflops));
}

void print_head(const Options& o, const Where& where) {
  const StepShape& s = o.shape;
  fmt::print("{}{}, {} x {}, {}\n", s.preset, s.layers > 0 ? fmt::format(" {} layers", s.layers) : "", s.batch, s.seq,
             where.name());
  print_ceilings(where, "");
  fmt::print("{:8} {:10} {:>10} {:>10} {:>10} {:>9} {:>10} {:>17} {:>9} {:>6}\n", "variant", "recipe", "ms a step", "host's ms",
             "tokens/s", "TFLOP/s", "memory GB", "activations/token", "launches", "syncs");
}

void print_row(const StepTime& t) {
  if (!t.refusal.empty()) return fmt::print("{:8} {:10} not run: {}\n", t.variant, t.recipe, t.refusal);
  fmt::print("{:8} {:10} {:10.1f} {:10.1f} {:10.0f} {:9.3f} {:10.3f} {:17} {:>9} {:>6}\n", t.variant, t.recipe, 1e3 * t.seconds,
             1e3 * t.cpu_seconds, t.tokens_per_second(), t.tflops, static_cast<double>(t.plan.total()) / 1e9,
             t.activation_bytes_per_token(), t.launches > 0 ? std::to_string(t.launches) : "-", t.host_syncs);
}

nlohmann::ordered_json to_json(const Options& o, const StepTime& t, const Where& where) {
  nlohmann::ordered_json line{{"name", "train"},
                              {"device", where.device.is_cuda() ? "cuda" : "cpu"},
                              {"recipe", t.recipe},
                              {"variant", t.variant},
                              {"shape",
                               {{"preset", o.shape.preset},
                                {"layers", t.layers},
                                {"batch", o.shape.batch},
                                {"seq", o.shape.seq},
                                {"threads", where.threads}}}};
  if (!t.refusal.empty()) {
    line["refused"] = t.refusal;
    return line;
  }
  line["milliseconds"] = 1e3 * t.seconds;
  line["cpu_milliseconds"] = 1e3 * t.cpu_seconds;
  line["tflops"] = t.tflops;
  line["tokens_per_second"] = t.tokens_per_second();
  line["percent_of_ceiling"] = nullptr;
  if (where.ceilings.tflops > 0) line["percent_of_ceiling"] = 100 * t.tflops / where.ceilings.tflops;
  line["host_syncs"] = t.host_syncs;
  line["launches"] = nullptr;
  if (t.launches > 0) line["launches"] = t.launches;
  line["bytes_saved_per_token"] = nullptr;
  line["activation_bytes_per_token"] = t.activation_bytes_per_token();
  line["planned_bytes"] = t.plan.total();
  return line;
}

void profile(train::Engine& engine, const Options& o, const data::PackedBatch& packed, const Where& where) {
  const nn::Batch batch = nn::view_of(packed);
  const auto seq = static_cast<double>(o.shape.seq);
  const double pairs = static_cast<double>(o.shape.batch) * seq * (seq + 1) / 2;
  constexpr int kSteps = 5;
  std::vector<std::vector<ops::TimedOperation>> steps(kSteps);
  for (auto& step : steps) step = engine.profile(std::span(&batch, 1), static_cast<double>(packed.label_count));
  print_profile(summarise(steps, where.ceilings, pairs), o.json);
}

int run_bench_train(const Options& o) {
  const Device device = choose_device(o);
  const train::EngineOptions options = step_options(o.shape, device, o.recipe, o.experts);
  const train::MemoryPlan plan = train::Engine::plan(options);
  ThreadPool pool(o.threads);
  Where where{.device = device, .threads = pool.num_threads(), .ceilings = {}};
  if (device.is_cuda() || o.profile) where.ceilings = measure_ceilings(device, options.precision, &pool);
  train::Engine engine(options, plan, &pool);
  const data::PackedBatch packed = random_batch(o.shape, options.model.vocabulary);
  StepTime time = time_steps(engine, options, o.shape, packed, o.steps);
  time.plan = plan;
  if (o.json) {
    auto line = to_json(o, time, where);
    line["peak_resident_bytes"] = peak_resident_bytes();
    fmt::print("{}", json_line(line));
  } else {
    print_text(o, time, where);
  }
  if (o.profile) profile(engine, o, packed, where);
  return kDone;
}

int run_ladder(const Options& o) {
  const Device device = choose_device(o);
  step_options(o.shape, device, "auto", "grouped");  // what no rung could run is an error
  ThreadPool pool(o.threads);
  Where where{.device = device, .threads = pool.num_threads(), .ceilings = {}};
  if (device.is_cuda()) where.ceilings = measure_ceilings(device, Precision::kBF16, &pool);
  if (!o.json) print_head(o, where);
  climb_steps(device, pool, o.shape, o.steps, [&](const StepTime& time) {
    o.json ? fmt::print("{}", json_line(to_json(o, time, where))) : print_row(time);
    std::fflush(stdout);
  });
  return kDone;
}

}  // namespace

void add_bench_train(CLI::App& bench, const std::string& example, Run& run) {
  const auto o = std::make_shared<Options>();
  StepShape& s = o->shape;
  CLI::App* verb =
      add_verb(bench, "train", "Whole training steps on random tokens: forward, backward, clip, optimizer", example, *o);
  const auto positive = CLI::Range(int64_t{1}, int64_t{1} << 30);
  verb->add_option("--preset", s.preset, "The model's shape")->capture_default_str();
  verb->add_option("--set", s.overrides, "Override a key of the preset: model.experts=64")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  verb->add_option("--layers", s.layers, "Instead of the preset's")->check(positive);
  verb->add_option("--vocabulary", s.vocabulary, "Instead of the preset's")->check(positive);
  verb->add_option("--clip", s.clip, "Of the gradient's norm; 0: none")->check(CLI::Range(0.0, 1e30))->capture_default_str();
  CLI::Option* profile = verb->add_flag("--profile", o->profile,
                                        "Five more steps, operation by operation: medians, shares, rates, and ratios to D or C");
  verb->add_option("--batch", s.batch, "Sequences in a step")->check(positive)->capture_default_str();
  verb->add_option("--seq", s.seq, "Tokens of each, at least 2")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30))
      ->capture_default_str();
  CLI::Option* recipe = verb->add_option("--recipe", o->recipe, "auto, fp32, bf16 or mxfp8")
                            ->check(CLI::IsMember({"auto", "fp32", "bf16", "mxfp8"}))
                            ->capture_default_str();
  CLI::Option* experts = verb->add_option("--experts", o->experts, "grouped or loop")
                             ->check(CLI::IsMember({"grouped", "loop"}))
                             ->capture_default_str();
  verb->add_option("--recompute", s.recompute, "none, mlp or layer")
      ->check(CLI::IsMember({"none", "mlp", "layer"}))
      ->capture_default_str();
  verb->add_option("--steps", o->steps, "Steps that are timed")->check(positive)->capture_default_str();
  verb->add_flag("--ablate", o->ablate,
                 "Every way there: a loop over experts, grouped products, the same in MXFP8, fused, fused in MXFP8")
      ->excludes(profile)
      ->excludes(recipe)
      ->excludes(experts);
  verb->callback([o, &run] { run = [o] { return o->ablate ? run_ladder(*o) : run_bench_train(*o); }; });
}

}  // namespace cistron::apps
