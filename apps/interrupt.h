#pragma once
#include <atomic>

namespace cistron::apps {

/// While it lives, the first SIGINT, SIGTERM or SIGHUP sets `signal()` to its number; a second SIGINT or SIGTERM ends the program
/// at once (a lost terminal may send SIGHUP twice). SIGHUP stays ignored where it was, as under nohup.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  [[nodiscard]] const std::atomic<int>& signal() const;
};

}  // namespace cistron::apps
