#pragma once
// What a run is: a TOML file, read strictly, with overrides from the command line. The table in config_keys.cpp is the one place
// where a key's name, type, range and explanation stand.
#include <filesystem>
#include <string>
#include <vector>

#include "cistron/core/context.h"
#include "cistron/model/config.h"
#include "cistron/model/decoder.h"
#include "cistron/nn/local_parameters.h"

namespace cistron::train {

struct RunConfig {
  std::string preset;
  model::ModelConfig model;

  struct Data {
    std::string store;
    int64_t context = 0;  ///< longest piece of a sequence that is trained on; 0: the model's context
  } data;

  struct Train {
    int64_t steps = 0;  ///< beats tokens
    int64_t tokens = 0;
    int64_t batch_tokens = 4096;
    int64_t micro_batch_tokens = 0;  ///< 0: batch_tokens
    int64_t seed = 1;
    int64_t validate_every = 100;    ///< 0: only at the end
    int64_t validate_tokens = 0;     ///< 0: the whole validation split, as the last validation always does
    int64_t checkpoint_every = 100;  ///< 0: only at the end
    int64_t keep_last = 3;
    bool save_behind = false;
    std::string recompute = "none";
  } train;

  struct Optimizer {
    std::string name = "adamw";
    double lr = 1e-3;
    std::vector<double> betas{0.9, 0.95};
    double eps = 1e-8;
    double weight_decay = 0.1;
    double clip = 1.0;  ///< 0: no clipping
    std::string schedule = "cosine";
    int64_t warmup = 0;        ///< steps
    double final_lr = 0.1;     ///< at the last step, as a share of lr
    double decay_share = 0.2;  ///< wsd: share of the steps that the final descent takes
    std::string state_dtype = "fp32";
    std::string masters = "fp32";
    bool update_in_backward = false;
  } optimizer;

  std::string recipe = "auto";
  struct Mxfp8 {
    int64_t group = 128;
    bool attention = true;
    int64_t bf16_first = 0, bf16_last = 0;
    bool statistics = false;
  } mxfp8;
  std::string experts = "grouped";
  bool require_fused = false;

  struct Parallel {
    int64_t dp = 0;  ///< 0: all ranks that ep leaves
    int64_t ep = 1;
    bool fsdp = true;
    bool reshard_after_forward = true;
    double timeout_seconds = 600;
    double headroom = 1.25;
  } parallel;

  struct DeviceChoice {
    std::string kind = "auto";
    int64_t threads = 0;  ///< 0: all cores
  } device;

  /// The steps of the whole run: `train.steps`, or `train.tokens` rounded up to whole steps.
  [[nodiscard]] int64_t total_steps() const;
  [[nodiscard]] int64_t micro_batches() const { return train.batch_tokens / train.micro_batch_tokens; }
  /// "auto" must have been resolved.
  [[nodiscard]] Precision precision() const;
  [[nodiscard]] model::Mxfp8Layers mxfp8_layers() const;
  [[nodiscard]] nn::OptimizerStorage storage() const;
  [[nodiscard]] model::Recompute recompute() const;
  [[nodiscard]] model::Experts experts_kind() const;
};

/// Reads `text` (called `name` in messages) and then the overrides, each "section.key=value". Throws Error(kUsage) for whatever
/// is unknown (with the nearest known name), of a wrong type, out of range, given twice, or not in this build. `--set` beats the
/// file; a preset is taken before the keys that change it.
RunConfig parse_config(const std::string& text, const std::string& name, const std::vector<std::string>& overrides = {});
RunConfig load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides = {});

/// Puts values where 0 or "auto" stands, and checks what several keys mean together. `fast_bf16`: whether the device multiplies
/// bf16 fast, so that recipe "auto" takes it. Throws Error(kUsage).
void resolve(RunConfig& config, bool fast_bf16);

/// Throws Error(kUsage) where the recipe is mxfp8 and its keys, the model's widths or the kind of experts don't fit it. `resolve`
/// asks it.
void check_mxfp8(const RunConfig& config);

/// Every key with its value, as TOML that `parse_config` reads back to an equal configuration.
std::string to_toml(const RunConfig& config);

/// "section.key: then -> now" for each difference, in the table's order.
std::vector<std::string> differences(const RunConfig& then, const RunConfig& now);

}  // namespace cistron::train
