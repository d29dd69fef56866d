// cistron plan CONFIG --gpus N
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/show.h"
#include "cistron/core/error.h"
#include "cistron/train/layouts.h"
#include "cistron/train/progress.h"

namespace cistron::apps {

namespace {

struct Options : Common {
  std::string config;
  std::vector<std::string> overrides;
  int64_t gpus = 1;
  uint64_t memory = uint64_t{80} << 30;
};

nlohmann::ordered_json memory_json(const train::MemoryPlan& memory) {
  return {{"parameters", memory.parameters}, {"gradients", memory.gradients},     {"optimizer", memory.optimizer},
          {"gathered", memory.gathered},     {"activations", memory.activations}, {"total", memory.total()}};
}

void print_json(const train::RunConfig& config, const train::LayoutPlan& plan, bool fits, const std::string& change) {
  nlohmann::ordered_json line{{"layout", {{"dp", plan.shape.dp}, {"ep", plan.shape.ep}, {"fsdp", config.parallel.fsdp}}},
                              {"fits", fits},
                              {"parameters", plan.parameters},
                              {"memory", memory_json(plan.memory)},
                              {"step_milliseconds", nullptr}};
  line["would_fit_with"] = change.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(change);
  fmt::print("{}\n", line.dump());
}

void print_row(const train::LayoutPlan& plan, bool fits, const std::string& change) {
  const auto gb = [](int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / 1e9); };
  const auto& m = plan.memory;
  const std::string verdict = fits ? "fits" : change.empty() ? "does not fit" : "would fit with " + change;
  fmt::print("{:>4} x {:<4} {:>10} {:>10} {:>10} {:>10} {:>11} {:>10}  {}\n", plan.shape.dp, plan.shape.ep, gb(m.parameters),
             gb(m.gradients), gb(m.optimizer), gb(m.gathered), gb(m.activations), gb(m.total()), verdict);
}

/// A layout whose sizes no machine can count has a row too; false then.
bool print_layout(const Options& o, const train::RunConfig& config, const dist::MeshShape& shape, int64_t memory) {
  try {
    const train::LayoutPlan plan = train::plan_layout(config, shape);
    const bool fits = plan.memory.total() <= memory;
    const std::string change = fits ? "" : train::what_would_fit(config, shape, memory);
    o.json ? print_json(config, plan, fits, change) : print_row(plan, fits, change);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kOutOfSpace) throw;
    if (!o.json) fmt::print("{:>4} x {:<4} does not fit: {}\n", shape.dp, shape.ep, error.what());
    const nlohmann::ordered_json line{{"layout", {{"dp", shape.dp}, {"ep", shape.ep}, {"fsdp", config.parallel.fsdp}}},
                                      {"fits", false},
                                      {"refused", error.what()}};
    if (o.json) fmt::print("{}", json_line(line));
    return false;
  }
}

int run_plan(const Options& o) {
  train::RunConfig config = train::load_config(o.config, o.overrides);
  train::resolve(config, /*fast_bf16=*/true);
  const auto memory = static_cast<int64_t>(o.memory);
  if (memory <= 0) throw Error(ErrorKind::kUsage, "a rank has no memory", "--memory", "give bytes, or a size such as 80GB");
  const auto layouts = train::legal_layouts(static_cast<int>(o.gpus), config.model.experts);
  if (!o.json)
    fmt::print(
        "{} ranks of {:.2f} GB, recipe {}, {} tokens a micro-batch over all; GB on the rank that holds the most\n"
        "  dp x ep   parameters  gradients  optimizer   gathered activations      total\n",
        o.gpus, static_cast<double>(memory) / 1e9, config.recipe, config.train.micro_batch_tokens);
  bool planned = false;
  for (const auto& shape : layouts) planned |= print_layout(o, config, shape, memory);
  if (planned && !o.json) fmt::print("\n{}", train::Engine::fusions(train::engine_options(config)));
  const auto& p = config.parallel;
  if (o.gpus % p.ep != 0 || p.ep > config.model.experts || (p.dp > 0 && p.dp * p.ep != o.gpus))
    train::show(stderr, fmt::format("cistron: with parallel.dp = {} and parallel.ep = {}, as configured, {} ranks are refused\n",
                                    p.dp, p.ep, o.gpus));
  return kDone;
}

}  // namespace

void add_plan(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  CLI::App* verb = add_verb(app, "plan", "What each layout of ranks would need in memory and what runs fused, without training",
                            "cistron plan configs/tiny-protein.toml --gpus 8 --memory 80GB", *o);
  verb->add_option("CONFIG", o->config, "The configuration")->required();
  verb->add_option("--gpus", o->gpus, "Ranks, one on each GPU")->check(CLI::Range(1, 4096))->capture_default_str();
  verb->add_option("--memory", o->memory, "Of each rank, as 141GB; 80 GiB unless given")->transform(CLI::AsSizeValue(true));
  verb->add_option("--set", o->overrides, "Override a key: section.key=value")->take_all()->expected(1)->allow_extra_args(false);
  verb->callback([o, &run] { run = [o] { return run_plan(*o); }; });
}

}  // namespace cistron::apps
