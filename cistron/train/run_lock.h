#pragma once
#include <filesystem>

namespace cistron::train {

/// One process at a time works in a run: RUN/.lock is held while this lives, and the kernel lets go of it however a process ends.
class RunLock {
 public:
  /// `run` must exist. Throws Error(kUsage) where another holds it.
  explicit RunLock(std::filesystem::path run);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Throws Error(kFailed) where the run is not at its path any more: it was removed or renamed, or another has its place.
  /// Whoever writes into the run or removes from it asks first, every time.
  void check() const;
  /// False on a file system without locks.
  [[nodiscard]] bool is_held() const { return held_; }

  static constexpr const char* kName = ".lock";

 private:
  std::filesystem::path run_;
  int fd_ = -1;
  bool held_ = false;
};

}  // namespace cistron::train
