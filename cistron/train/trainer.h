#pragma once
// The loop: batches to steps, steps to numbers, with validation and checkpoints on the way.
#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "cistron/data/loader.h"
#include "cistron/train/engine.h"
#include "cistron/train/metrics.h"
#include "cistron/train/progress.h"
#include "cistron/train/ranks.h"
#include "cistron/train/run_folder.h"
#include "cistron/train/saver.h"
#include "cistron/train/schedule.h"

namespace cistron::train {

/// What the engine of one rank of a mesh needs to know of a resolved configuration.
EngineOptions engine_options(const RunConfig& config, const dist::MeshShape& shape = {}, int rank = 0);
LearningRate learning_rate(const RunConfig& config);

struct TrainerOptions {
  RunConfig config;  ///< resolved
  std::filesystem::path run;
  RunFolder::Mode mode = RunFolder::Mode::kNew;
  const std::atomic<int>* signal = nullptr;  ///< not zero: finish the step, save, stop
  dist::Communicator* world = nullptr;       ///< of the ranks that train together; null: this one alone
};

struct TrainResult {
  bool interrupted = false;
  int signal = 0;             ///< that interrupted it, on any rank
  bool was_finished = false;  ///< there was nothing to do; the numbers are the recorded ones
  int64_t step = 0;
  int64_t tokens = 0;
  double loss = 0.0;                            ///< of the last step
  std::optional<ValidationMetrics> validation;  ///< the last one
};

class Trainer {
 public:
  /// Opens the store, plans and takes the memory, loads the checkpoint to resume from. Writes only where all of that went well.
  /// Every rank makes a trainer and calls the same of it; the first one writes metrics and the run's files.
  Trainer(TrainerOptions options, ThreadPool& pool, Progress& progress);

  /// Trains to the end of the schedule or to a signal. Throws Error(kFailed) naming step and module on a number that is not
  /// finite: nothing is updated then.
  TrainResult run();

  [[nodiscard]] Engine& engine() { return *engine_; }

 private:
  void resume();
  using Clock = std::chrono::steady_clock;
  /// A step that the engine has and whose result nobody has looked at: on a device with a queue the one before the last.
  struct UnderWay {
    Clock::time_point start;
    std::vector<data::PackedBatch> packed;
    double label_weight = 0.0, learning_rate = 0.0;
    int64_t step = 0, tokens = 0;
  };
  void train_step();
  void take_result();
  void catch_up();
  void log_step(const UnderWay& step, const StepResult& result, double seconds);
  [[noreturn]] void stop_on_nonfinite(const UnderWay& step);
  void validate();
  void count_underflow();
  void save();
  [[nodiscard]] bool due(int64_t every) const;
  [[nodiscard]] bool at_end() const { return state_.step >= config_.total_steps(); }
  bool stopping();
  void describe(const MemoryPlan& plan, int threads);

  TrainerOptions options_;
  const RunConfig& config_;
  Progress& progress_;
  std::unique_ptr<dist::Communicator> alone_;  // where no world was given
  RunFolder folder_;
  data::Store store_;
  Ranks ranks_;
  data::Loader loader_;
  std::optional<data::EvalBatches> validation_;
  EngineOptions engine_options_;
  std::unique_ptr<Engine> engine_;
  std::optional<Metrics> metrics_;  // the first rank's
  TrainingState state_;
  std::optional<Saver> saver_;
  int64_t saved_step_ = -1;
  int signal_ = 0;  // that some rank has got
  std::deque<UnderWay> under_way_;
  Clock::time_point last_result_;
  double seconds_per_step_ = 0.0;  // smoothed, for the time that is left
  TrainResult result_;
};

}  // namespace cistron::train
