#pragma once
// RUN/checkpoints: one directory a checkpoint, and `latest`, a small file that names one.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "cistron/train/checkpoint.h"

namespace cistron::train {

class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// "step-00001000"
  static std::string name_of(int64_t step);

  /// Saves, makes it durable, then moves `latest`, then removes all but the last `keep` of this step and before.
  void save(Context& ctx, const CheckpointInfo& info, const nn::LocalParameters& parameters, int64_t keep) const;

  /// The checkpoint that `latest` names; where that is broken, the newest whole one. `say` gets a line for each one passed over.
  /// Null where there is none at all; Error(kBadData) where all are broken.
  [[nodiscard]] std::unique_ptr<Checkpoint> find(const std::function<void(const std::string&)>& say) const;

  /// Removes what a killed process was writing. Only for whoever holds the run's lock.
  void remove_partial() const;
  /// Puts back what a killed process was replacing. Only for whoever holds the run's lock.
  void restore_replaced() const;

 private:
  [[nodiscard]] std::vector<std::string> names() const;  // newest first, part-written ones left out
  [[nodiscard]] std::vector<std::filesystem::path> leftovers(std::string_view suffix) const;
  void prune(int64_t step, int64_t keep) const;

  std::filesystem::path folder_;
};

}  // namespace cistron::train
