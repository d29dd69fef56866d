#include "cistron/ops/timer.h"

#include <chrono>

namespace cistron::ops {

namespace {

/// Operations are done when they return.
class HostTimer final : public DeviceTimer {
 public:
  void start(double /*pause_milliseconds*/) override {}
  void begin() override { start_ = Clock::now(); }
  void end(const char* op, const Cost& cost) override {
    const std::chrono::duration<double, std::milli> spent = Clock::now() - start_;
    done_.push_back({.op = op, .milliseconds = spent.count(), .cost = cost});
  }
  std::vector<TimedOperation> finish() override { return std::move(done_); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_;
  std::vector<TimedOperation> done_;
};

}  // namespace

std::unique_ptr<DeviceTimer> make_timer(const Context& ctx) {
  return ctx.device.is_cuda() ? cuda::make_timer(ctx) : std::make_unique<HostTimer>();
}

}  // namespace cistron::ops
