#pragma once
#include <memory>

#include "cistron/dist/background.h"
#include "cistron/train/checkpoint_folder.h"

namespace cistron::train {

/// Saves a run's checkpoints, one after the other: at once, or behind training, from a copy in memory by a thread of its own.
/// Either way `latest` moves, and older ones go, only when all of a checkpoint is on the disk. All ranks of `world` call the
/// same.
class Saver {
 public:
  struct Options {
    int64_t keep = 3;     ///< checkpoints
    bool behind = false;  ///< train.save_behind
  };
  Saver(CheckpointFolder folder, const Options& options, dist::Communicator& world);

  /// Behind training it waits for the one before, and throws what that threw. Else returns when the checkpoint is there.
  void save(Context& ctx, const CheckpointInfo& info, const nn::LocalParameters& parameters);
  /// Until everything is on the disk. Throws what a save behind training threw.
  void wait();
  /// A save behind training has thrown; never waits.
  [[nodiscard]] bool has_failed();

 private:
  CheckpointFolder folder_;
  Options options_;
  dist::Communicator& world_;
  std::unique_ptr<dist::Communicator> own_;       // the thread's
  int64_t last_ = 0;                              // job
  std::unique_ptr<dist::Background> background_;  // null: at once; the last member, so that it ends first
};

}  // namespace cistron::train
