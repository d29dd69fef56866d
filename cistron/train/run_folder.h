#pragma once
// RUN, the directory of a run: may it be used, what is in it, and does what is in it fit the configuration at hand.
#include <cstdint>
#include <filesystem>
#include <memory>

#include "cistron/train/checkpoint_folder.h"
#include "cistron/train/progress.h"

namespace cistron::train {

class RunFolder {
 public:
  enum class Mode : uint8_t { kNew, kResume, kForce };
  /// Throws Error(kUsage) where `path` exists and the mode is kNew. Changes nothing.
  RunFolder(std::filesystem::path path, Mode mode);

  /// The checkpoint to go on from, or null. Throws Error(kUsage) where `config` or the data are not those of the checkpoint in
  /// what a resumed run cannot change; says what else differs.
  [[nodiscard]] std::unique_ptr<Checkpoint> resume_from(const RunConfig& config, uint64_t store_fingerprint,
                                                        Progress& progress) const;
  /// Makes the directory, clears it under kForce, and writes config.toml. Throws Error(kOutOfSpace) where the disk has no room
  /// for a checkpoint of `checkpoint_bytes`.
  void prepare(const RunConfig& config, int64_t checkpoint_bytes) const;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] CheckpointFolder checkpoints() const { return CheckpointFolder(path_ / "checkpoints"); }

 private:
  std::filesystem::path path_;
  Mode mode_;
};

}  // namespace cistron::train
