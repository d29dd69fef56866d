#pragma once
#include <array>
#include <atomic>
#include <csignal>

namespace cistron::apps {

/// While it lives, the first SIGINT, SIGTERM, SIGHUP, SIGUSR1 (a scheduler's warning) or SIGXCPU (a limit on the processor's
/// time) sets `signal()` to its number; a second SIGINT or SIGTERM ends the program at once (the others may come more than once).
/// What the parent ignores stays ignored, as under nohup.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  [[nodiscard]] const std::atomic<int>& signal() const;

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace cistron::apps
