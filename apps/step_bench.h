#pragma once
// Whole training steps (forward, backward, clip, optimizer) on random tokens, timed: one way to compute them, or the ladder from
// a loop over experts to the fused grouped MLP.
#include <functional>
#include <string>
#include <vector>

#include "apps/moe_ladder.h"
#include "cistron/data/pack.h"
#include "cistron/train/engine.h"

namespace cistron::apps {

struct StepShape {
  std::string preset = "tiny-protein", recompute = "none";
  std::vector<std::string> overrides;  ///< of the preset's keys
  int64_t layers = 0, vocabulary = 0;  ///< instead of the preset's; 0: those
  int64_t batch = 8, seq = 512;
  double clip = 1.0;
};

/// `recipe`: fp32, bf16, mxfp8, or auto; `experts`: grouped or loop, which a card runs as well, unrecorded. Throws Error(kUsage)
/// as a configuration would.
train::EngineOptions step_options(const StepShape& shape, const Device& device, const std::string& recipe,
                                  const std::string& experts);
/// "fp32", "bf16", "mxfp8/128"
std::string recipe_name(Precision precision);

data::PackedBatch random_batch(const StepShape& shape, int64_t vocabulary);

struct StepTime {
  std::string variant, recipe;
  std::string refusal;  ///< why it was not run; the rest is then zero
  int64_t layers = 0, tokens = 0;
  train::MemoryPlan plan;
  double seconds = 0.0;      ///< median of a step
  double cpu_seconds = 0.0;  ///< of a step, by all threads of the host: other programs on its cores disturb it less
  double tflops = 0.0;       ///< of the products
  int64_t launches = 0;      ///< kernels of a recorded step; 0: none was recorded
  int64_t host_syncs = 0;    ///< places in a step where the host waits for the device

  [[nodiscard]] double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  [[nodiscard]] int64_t activation_bytes_per_token() const { return plan.activations / tokens; }
};

/// Initialises the engine and times `steps` steps, after some that warm up.
StepTime time_steps(train::Engine& engine, const train::EngineOptions& options, const StepShape& shape,
                    const data::PackedBatch& batch, int64_t steps);

/// The rungs one after the other, each with the memory to itself; `show` is told of each when it is done.
void climb_steps(const Device& device, ThreadPool& pool, const StepShape& shape, int64_t steps,
                 const std::function<void(const StepTime&)>& show);

}  // namespace cistron::apps
