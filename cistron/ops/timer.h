#pragma once
// How long each operation takes on a device.
#include <memory>
#include <string>
#include <vector>

#include "cistron/core/context.h"

namespace cistron::ops {

struct TimedOperation {
  std::string op;
  double milliseconds = 0.0;
  Cost cost;
};

/// Marks the context's queue before and after each operation. So that operations wait for the device and never it for them, the
/// device begins with a pause in which the host runs ahead.
class DeviceTimer : public OperationTimer {
 public:
  /// The pause, and the first mark.
  virtual void start(double pause_milliseconds) = 0;
  /// Waits for the device. In the order in which they ran.
  virtual std::vector<TimedOperation> finish() = 0;
};
std::unique_ptr<DeviceTimer> make_timer(const Context& ctx);

}  // namespace cistron::ops

namespace cistron::cuda {
std::unique_ptr<ops::DeviceTimer> make_timer(const Context& ctx);
}  // namespace cistron::cuda
