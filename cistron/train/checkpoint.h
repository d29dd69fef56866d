#pragma once
// A checkpoint is a directory, whole or absent:
//   manifest.json             version, every other file with its bytes and XXH64, and which slice of which parameter lies where
//   state.json                step, tokens, seed, what the data was, the tokenizer
//   config.toml               the run's configuration, all keys
//   parameters.safetensors    fp32 masters by global name
//   optimizer.safetensors     "NAME.m" and "NAME.v"; absent in an imported model
// A tensor holds rows [begin, begin + count) of dim 0 of the parameter that the manifest names, so that other layouts can share
// it.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "cistron/core/step_state.h"
#include "cistron/io/safetensors.h"
#include "cistron/nn/local_parameters.h"
#include "cistron/train/config.h"

namespace cistron::train {

struct TrainingState {
  int64_t step = 0;    ///< steps done
  int64_t tokens = 0;  ///< tokens trained on: the position in the stream of data
  uint64_t store_fingerprint = 0;
  bool validation_due = false;  ///< a signal came before this step's validation was through
  StepState step_state;
};

struct CheckpointInfo {
  RunConfig config;
  std::string tokenizer;  ///< its name; empty: unknown
  TrainingState state;
};

/// Writes `directory`, atomically; one that exists (and was found broken) is replaced where `replace` is set. Moments are written
/// where the parameters have them. `ctx` is theirs.
void save_checkpoint(Context& ctx, const std::filesystem::path& directory, const CheckpointInfo& info,
                     const nn::LocalParameters& parameters, bool replace);

class Checkpoint {
 public:
  /// Reads every byte and checks it. Throws Error(kBadData) naming the file and what is wrong with it: missing, cut short, extra,
  /// a wrong checksum, another version.
  explicit Checkpoint(const std::filesystem::path& directory);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] const CheckpointInfo& info() const { return info_; }
  [[nodiscard]] bool has_optimizer() const { return optimizer_ != nullptr; }
  /// The whole of one parameter, fp32, valid as long as this object. Throws Error(kBadData) where there is none.
  [[nodiscard]] std::span<const float> values(const std::string& parameter) const;
  /// Fills masters (and moments, where both sides have them). Throws Error(kBadData) on a parameter that is missing, left over,
  /// or of another shape. Working copies are the caller's to refresh.
  void load(Context& ctx, nn::LocalParameters& parameters) const;

 private:
  std::filesystem::path directory_;
  CheckpointInfo info_;
  std::unique_ptr<io::SafetensorsFile> parameters_, optimizer_;
};

}  // namespace cistron::train
