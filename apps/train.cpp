// cistron train CONFIG --out RUN
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/interrupt.h"
#include "apps/show.h"
#include "cistron/core/error.h"
#include "cistron/cpu/fast/onednn.h"
#include "cistron/train/trainer.h"

namespace cistron::apps {

namespace {

struct Options : Common {
  std::string config, out;
  std::vector<std::string> overrides;
  bool resume = false;
  int64_t ranks = 1;
};

train::RunConfig read_config(const Options& o) {
  train::RunConfig config = train::load_config(o.config, o.overrides);
  if (o.device != "auto") config.device.kind = o.device;
  if (o.threads > 0) config.device.threads = o.threads;
  train::resolve(config, cpu::has_fast_bf16());
  return config;
}

void print_result(const Options& o, const train::TrainResult& result) {
  if (o.json) {
    nlohmann::ordered_json line{{"run", o.out}, {"step", result.step}, {"tokens", result.tokens}, {"loss", result.loss}};
    if (result.validation) {
      line["valid_loss"] = result.validation->loss;
      line["valid_perplexity"] = result.validation->perplexity();
      line["valid_bits_per_token"] = result.validation->bits_per_token();
      line["valid_tokens"] = result.validation->tokens;
    }
    fmt::print("{}", json_line(line));
  } else {
    const std::string step = fmt::format("{}: {}step {}", o.out, result.was_finished ? "finished already, at " : "", result.step);
    const double loss = result.validation ? result.validation->loss : result.loss;
    if (std::isfinite(loss))
      fmt::print("{}, {}loss {:.4f} nats a token\n", step, result.validation ? "held-out " : "", loss);
    else
      fmt::print("{}\n", step);
  }
}

int run_train(const Options& o) {
  check_device(o);
  if (o.out.empty()) throw Error(ErrorKind::kUsage, "the run has no name", "--out ''", "give the directory to write");
  if (o.ranks != 1) throw Error(ErrorKind::kUsage, "this build trains on one rank", "--ranks", "leave it at 1");
  const train::RunConfig config = read_config(o);
  train::Progress progress(train::ProgressOptions::standard_error(o.quiet));
  const InterruptGuard interrupt;
  ThreadPool pool(static_cast<int>(config.device.threads));
  using Mode = train::RunFolder::Mode;
  const Mode mode = o.resume ? Mode::kResume : o.force ? Mode::kForce : Mode::kNew;
  train::Trainer trainer({.config = config, .run = o.out, .mode = mode, .signal = &interrupt.signal()}, pool, progress);
  const train::TrainResult result = trainer.run();
  if (result.interrupted) {
    const auto config_file = std::filesystem::path(o.out) / "config.toml";  // resolved: what --set said is in it
    progress.warn(fmt::format("interrupted after step {}, the state is saved; go on with: cistron train {} --out {} --resume",
                              result.step, shell_quoted(config_file.string()), shell_quoted(o.out)));
    return kInterruptedBase + interrupt.signal();
  }
  print_result(o, result);
  return kDone;
}

}  // namespace

void add_train(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  CLI::App* verb = add_verb(app, "train", "Train a model as a TOML file says",
                            "cistron train configs/tiny-protein.toml --out runs/tiny --set train.tokens=1M", *o, true);
  verb->add_option("CONFIG", o->config, "The configuration")->required();
  verb->add_option("--out", o->out, "The run's directory: checkpoints, metrics, resolved configuration")->required();
  verb->add_flag("--resume", o->resume, "Go on from the last checkpoint; start afresh where there is none");
  verb->add_option("--set", o->overrides, "Override a key: section.key=value")->take_all()->expected(1)->allow_extra_args(false);
  verb->add_option("--ranks", o->ranks, "Processes that train together");
  verb->callback([o, &run] { run = [o] { return run_train(*o); }; });
}

}  // namespace cistron::apps
