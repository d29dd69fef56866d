#pragma once
#include <filesystem>

namespace cistron::train {

/// One process at a time works in a run: RUN/.lock is held while this lives, and the kernel lets go of it however a process ends.
class RunLock {
 public:
  /// `run` must exist. Throws Error(kUsage) where another holds it.
  explicit RunLock(const std::filesystem::path& run);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  static constexpr const char* kName = ".lock";

 private:
  int fd_ = -1;
};

}  // namespace cistron::train
