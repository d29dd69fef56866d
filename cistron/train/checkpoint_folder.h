#pragma once
// RUN/checkpoints: one directory a checkpoint, and `latest`, a small file that names one.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "cistron/train/checkpoint.h"
#include "cistron/train/run_lock.h"

namespace cistron::train {

class CheckpointFolder {
 public:
  /// `lock`: that of the run, where this process trains it; it must outlive this.
  explicit CheckpointFolder(std::filesystem::path folder, const RunLock* lock = nullptr)
      : folder_(std::move(folder)), lock_(lock) {}

  /// "step-00001000"
  static std::string name_of(int64_t step);

  /// Saves, makes it durable, then moves `latest`, then removes all but the last `keep` of this step and before. All ranks of
  /// `world` call it, each with its slices; where one fails, all throw. The folder itself must exist; where the run is not at its
  /// path any more nothing is changed (RunLock::check).
  void save(Context& ctx, const CheckpointInfo& info, const std::vector<ParameterSlice>& slices, int64_t keep,
            dist::Communicator& world) const;

  /// The checkpoint that `latest` names; where that is broken, the newest whole one. `say` gets a line for each one passed over.
  /// Null where there is none at all; Error(kBadData) where all are broken. All ranks of `world` call it, share the reading, and
  /// find the same. What cannot be read for another reason than damage (no permission, a disk's error) is thrown on.
  using Say = std::function<void(const std::string&)>;
  [[nodiscard]] std::unique_ptr<Checkpoint> find(const Say& say, dist::Communicator& world,
                                                 std::vector<std::string>* passed_over = nullptr) const;
  /// The same for who reads beside a process that trains and prunes: what has gone meanwhile is not broken, it looks again.
  [[nodiscard]] std::unique_ptr<Checkpoint> find(const Say& say) const;

  /// The name that `latest` holds; empty where there is none.
  [[nodiscard]] std::string latest() const;
  /// Nothing that some other program put there.
  [[nodiscard]] bool holds_only_checkpoints() const;

  /// Renames what `find` passed over to NAME.broken, so that nothing is written over it. Only for whoever holds the run's lock.
  void set_aside(const std::string& name) const;
  /// Removes what a killed process was writing. Only for whoever holds the run's lock.
  void remove_partial() const;
  /// Puts back what a killed process was replacing. Only for whoever holds the run's lock.
  void restore_replaced() const;

 private:
  [[nodiscard]] std::vector<std::string> names() const;  // newest first, part-written ones left out
  [[nodiscard]] std::vector<std::filesystem::path> leftovers(std::string_view suffix) const;
  [[nodiscard]] std::vector<std::string> candidates(const Say& say) const;
  [[nodiscard]] std::unique_ptr<Checkpoint> find(const Say& say, dist::Communicator& world, std::vector<std::string>* passed_over,
                                                 const std::string& advice) const;
  void check_here() const;
  void prune(int64_t step, int64_t keep) const;

  std::filesystem::path folder_;
  const RunLock* lock_;
};

}  // namespace cistron::train
