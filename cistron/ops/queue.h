#pragma once
// The order in which a device works, while the host goes on.
#include <functional>
#include <memory>

#include "cistron/core/context.h"

namespace cistron::ops {

/// Work that was recorded once and runs again as it was, on the same memory.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Queues all of it, in one call.
  virtual void replay() = 0;
  /// Kernels in it.
  [[nodiscard]] virtual int64_t launches() const = 0;
};

class Queue {
 public:
  virtual ~Queue() = default;
  /// For `Context::stream`.
  [[nodiscard]] virtual CUstream_st* stream() const = 0;
  /// Records what `work` queues instead of running it. `work` must not wait for the device.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& work) = 0;
  /// Returns when all that was queued is done: a synchronisation.
  virtual void wait() = 0;
  /// How long the device takes for what `work` queues; waits.
  virtual double milliseconds(const std::function<void()>& work) = 0;
  /// All that was queued is done. Throws where the device has failed; does not wait.
  virtual bool is_idle() = 0;
};

/// A queue of the device's own; null for the CPU and the meta device, which do everything at once.
std::unique_ptr<Queue> make_queue(const Device& device);

}  // namespace cistron::ops

namespace cistron::cuda {
std::unique_ptr<ops::Queue> make_queue(const Device& device);
}  // namespace cistron::cuda
