#pragma once
#include <algorithm>
#include <chrono>

namespace cistron::dist {

/// The time that a rank waits for others before it says that they are late. A process that was stopped (Ctrl-Z, a suspended
/// machine) sleeps longer than it asked to: of that no more counts than it asked for, as the others were stopped with it.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Patience(std::chrono::milliseconds timeout) : left_(timeout) {}

  /// The longest that the next sleep may be.
  [[nodiscard]] Clock::duration slice() const { return std::clamp(left_, Clock::duration::zero(), kSlice); }
  /// Asked after each sleep: counts the time since it was asked last.
  bool is_over(Clock::time_point now = Clock::now()) {
    left_ -= std::min(now - last_, kSlice);
    last_ = now;
    return left_ <= Clock::duration::zero();
  }

 private:
  static constexpr Clock::duration kSlice = std::chrono::milliseconds(100);
  Clock::duration left_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace cistron::dist
