#pragma once
// RUN, the directory of a run: may it be used, what is in it, and does what is in it fit the configuration at hand.
#include <cstdint>
#include <filesystem>
#include <memory>

#include "cistron/train/checkpoint_folder.h"
#include "cistron/train/progress.h"
#include "cistron/train/run_lock.h"

namespace cistron::train {

class RunFolder {
 public:
  enum class Mode : uint8_t { kNew, kResume, kForce };
  /// Takes the lock of a run that exists. Throws Error(kUsage) where another process has it, where the mode is kNew and `path`
  /// holds anything, and where it is another and `path` holds anything but a run. Changes nothing else. Of several ranks the
  /// first does all this; `world` must outlive it.
  RunFolder(std::filesystem::path path, Mode mode, dist::Communicator& world);

  /// The checkpoint to go on from, or null; all ranks call it. Throws Error(kUsage) where `config` or the data are not those of
  /// the checkpoint in what a resumed run cannot change; says what else differs. Error(kBadData) where there was a checkpoint and
  /// none is left.
  [[nodiscard]] std::unique_ptr<Checkpoint> resume_from(const RunConfig& config, uint64_t store_fingerprint, Progress& progress);
  /// On the first rank: makes and locks the directory, clears it under kForce, sets broken checkpoints aside, and writes
  /// config.toml. Throws Error(kOutOfSpace), with an old run left as it was, where the disk has no room for a checkpoint of
  /// `checkpoint_bytes`.
  void prepare(const RunConfig& config, int64_t checkpoint_bytes);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Must not outlive this.
  [[nodiscard]] CheckpointFolder checkpoints() const { return CheckpointFolder(path_ / "checkpoints", lock_.get()); }
  /// The run's lock; null on other ranks than the first, and until the directory is there.
  [[nodiscard]] const RunLock* lock() const { return lock_.get(); }

 private:
  void check_nothing_lost() const;
  void make_and_lock();
  void check_space(int64_t needed, int64_t freed) const;
  void clear();
  [[nodiscard]] std::vector<std::filesystem::path> own_entries() const;  // what a run writes, and --force replaces

  std::filesystem::path path_;
  Mode mode_;
  dist::Communicator& world_;
  std::unique_ptr<RunLock> lock_;         // null until the directory is there
  std::vector<std::string> passed_over_;  // checkpoints that resume_from found broken
};

}  // namespace cistron::train
