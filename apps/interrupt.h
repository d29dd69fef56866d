#pragma once
#include <atomic>

namespace cistron::apps {

/// While it lives, the first SIGINT or SIGTERM sets `signal()` to its number; a second one ends the program at once.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  [[nodiscard]] const std::atomic<int>& signal() const;
};

}  // namespace cistron::apps
