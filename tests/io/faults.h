#pragma once
#include <cstdint>

namespace cistron::testing {

/// While one lives, the system calls that save files (pwrite, fsync, rename, renameat2, close after writing, mkdir) are counted,
/// and from number `first` (from 1) on `times` of them fail with `error`. EINTR: of those and open and flock the ones that a
/// signal may interrupt; 0: a write takes nothing. The calls of this program only; see faults.cpp.
class FailCalls {
 public:
  FailCalls(int64_t first, int error, int64_t times = 1);
  ~FailCalls();
  FailCalls(const FailCalls&) = delete;
  FailCalls& operator=(const FailCalls&) = delete;
  /// Calls seen so far.
  [[nodiscard]] static int64_t count();
};

}  // namespace cistron::testing
