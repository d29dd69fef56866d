#pragma once
// RUN/metrics.jsonl and RUN/events.out.tfevents.*: the numbers of each step. Keys are fixed: programs read them.
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>

#include "cistron/io/atomic_file.h"
#include "cistron/io/tensorboard.h"
#include "cistron/ops/mxfp8_underflow.h"
#include "cistron/train/run_lock.h"

namespace cistron::train {

struct StepMetrics {
  int64_t step = 0;
  int64_t tokens = 0;  ///< so far
  double loss = 0.0;   ///< cross-entropy alone, nats a token
  double aux_loss = 0.0;
  double z_loss = 0.0;
  double lr = 0.0;
  double grad_norm = 0.0;
  double tokens_per_second = 0.0;
  double router_entropy = 0.0;
  double expert_load_max_over_mean = 0.0;
};

struct ValidationMetrics {
  int64_t step = 0;
  double loss = 0.0;  ///< mean negative log-likelihood over the predicted tokens, nats
  int64_t tokens = 0;
  [[nodiscard]] double perplexity() const;
  [[nodiscard]] double bits_per_token() const;
};

/// Logged as shares of the elements.
struct UnderflowMetrics {
  int64_t step = 0;
  ops::Mxfp8Underflow weights, activations, gradients;
};

/// What RUN/metrics.jsonl says of one step; not a number and nothing where it says nothing.
struct RecordedStep {
  bool is_there = false;  ///< the file
  int64_t last_step = 0;  ///< in all of it
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::optional<ValidationMetrics> validation;
};
RecordedStep recorded_step(const std::filesystem::path& run, int64_t step);

class Metrics {
 public:
  /// Keeps the lines of an earlier start up to `last_step`, and drops the rest. `lock`: the run's, which must outlive this; null:
  /// there is none.
  Metrics(const std::filesystem::path& run, int64_t last_step, const RunLock* lock);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  /// Throws where the run is not at its path any more (RunLock::check).
  void log(const StepMetrics& metrics);
  void log(const ValidationMetrics& metrics);
  void log(const UnderflowMetrics& metrics);
  /// What was logged is on the disk. Called before a checkpoint is saved: what a run resumes from has its history.
  void sync();

 private:
  void append(const std::string& line);

  std::filesystem::path file_;
  const RunLock* lock_;
  int fd_ = -1;
  io::EventWriter events_;
};

}  // namespace cistron::train
