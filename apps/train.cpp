// cistron train CONFIG --out RUN
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/command.h"
#include "apps/interrupt.h"
#include "apps/show.h"
#include "cistron/core/error.h"
#include "cistron/cpu/fast/onednn.h"
#include "cistron/dist/mpi.h"
#include "cistron/dist/single.h"
#include "cistron/dist/threads.h"
#include "cistron/train/trainer.h"

namespace cistron::apps {

namespace {

struct Options : Common {
  std::string config, out;
  std::vector<std::string> overrides;
  bool resume = false;
  int64_t ranks = 0;  // not given
};

train::RunConfig read_config(const Options& o) {
  train::RunConfig config = train::load_config(o.config, o.overrides);
  const bool many = o.ranks > 1 || dist::launched_by_mpi();
  const Device device = choose_device(o, many && config.device.kind == "auto" ? "cpu" : config.device.kind);
  if (many && device.is_cuda())
    throw Error(ErrorKind::kUsage, "several ranks train on the CPU alone in this build", "--device cuda", "use --device cpu");
  config.device.kind = device.is_cuda() ? "cuda" : "cpu";
  if (o.threads > 0) config.device.threads = o.threads;
  train::resolve(config, device.is_cuda() || cpu::has_fast_bf16());
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

// Ranks that `mpirun` or `srun` started, threads of this process, or this process alone.
void run_on_ranks(const Options& o, const train::RunConfig& config, const std::function<void(dist::Communicator&)>& body) {
  const dist::Options options = train::communicator_options(config);
  const bool launched = dist::launched_by_mpi();
  if (launched && o.ranks > 0)
    throw Error(ErrorKind::kUsage, "the launcher says how many ranks there are", "--ranks", "leave it out under mpirun and srun");
  if (launched) return dist::run_mpi(body, options);
  if (o.ranks > 1) return dist::run_ranks(static_cast<int>(o.ranks), body, options);
  body(*dist::single());
}

// What is said at the end. Its reader may keep it waiting: signals end the program again by then.
void say_end(const Options& o, const train::TrainResult& result, int ranks) {
  if (!result.interrupted) return print_result(o, result);
  const auto config_file = std::filesystem::path(o.out) / "config.toml";  // resolved: what --set said is in it
  const std::string launcher = dist::launched_by_mpi() ? fmt::format("mpirun -n {} ", ranks) : "";
  train::show(stderr,
              fmt::format("interrupted after step {}, the state is saved; go on with: {}cistron train {} --out {} --resume{}\n",
                          result.step, launcher, shell_quoted(config_file.string()), shell_quoted(o.out),
                          o.ranks > 1 ? fmt::format(" --ranks {}", o.ranks) : ""));
}

train::TrainResult train_rank(const Options& o, const train::RunConfig& config, const InterruptGuard& interrupt,
                              dist::Communicator& world) {
  using Mode = train::RunFolder::Mode;
  auto shown = train::ProgressOptions::standard_error(o.quiet);
  if (world.rank() != 0) shown.stream = nullptr;
  train::Progress progress(shown);
  ThreadPool pool(train::threads_of_rank(world, config.device.threads));
  const Mode mode = o.resume ? Mode::kResume : o.force ? Mode::kForce : Mode::kNew;
  train::Trainer trainer({.config = config, .run = o.out, .mode = mode, .signal = &interrupt.signal(), .world = &world}, pool,
                         progress);
  return trainer.run();
}

int run_train(const Options& o) {
  if (o.out.empty()) throw Error(ErrorKind::kUsage, "the run has no name", "--out ''", "give the directory to write");
  const train::RunConfig config = read_config(o);
  std::optional<train::TrainResult> first;  // the first rank's
  int signal = 0, ranks = 1;
  {
    const InterruptGuard interrupt;
    run_on_ranks(o, config, [&](dist::Communicator& world) {
      const train::TrainResult result = train_rank(o, config, interrupt, world);
      if (world.rank() == 0) {
        first = result;
        ranks = world.size();
      }
      if (world.rank() == 0 || dist::launched_by_mpi()) signal = result.interrupted ? result.signal : 0;
    });
  }
  if (first) say_end(o, *first, ranks);
  return signal != 0 ? kInterruptedBase + signal : kDone;
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
  verb->add_option("--ranks", o->ranks, "Train on this many ranks, threads of this process")->check(CLI::Range(1, 256));
  verb->callback([o, &run] { run = [o] { return run_train(*o); }; });
}

}  // namespace cistron::apps
