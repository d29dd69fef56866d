#include "cistron/ops/queue.h"

namespace cistron::ops {

std::unique_ptr<Queue> make_queue(const Device& device) { return device.is_cuda() ? cuda::make_queue(device) : nullptr; }

}  // namespace cistron::ops
