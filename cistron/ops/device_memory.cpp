#include "cistron/ops/device_memory.h"

#include "cistron/core/host_memory.h"

namespace cistron::ops {

MemorySource& device_memory(const Device& device) { return device.is_cuda() ? cuda::device_memory(device) : host_memory(); }

MemorySource& shared_memory(const Device& device) { return device.is_cuda() ? cuda::shared_memory(device) : host_memory(); }

int64_t available_memory(const Device& device) {
  return device.is_cuda() ? cuda::available_memory(device) : available_host_memory();
}

}  // namespace cistron::ops
