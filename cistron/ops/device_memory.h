#pragma once
// Where a device's bytes come from.
#include "cistron/core/arena.h"

namespace cistron::ops {

/// The device's own memory. Taking too much throws Error(kOutOfSpace) with what was asked for and what is free.
MemorySource& device_memory(const Device& device);
/// Host memory that the device reads and writes at the host's addresses: page-locked where the device asks for that.
MemorySource& shared_memory(const Device& device);
/// Bytes of its own memory that can still be taken.
int64_t available_memory(const Device& device);

}  // namespace cistron::ops

namespace cistron::cuda {
MemorySource& device_memory(const Device& device);
MemorySource& shared_memory(const Device& device);
int64_t available_memory(const Device& device);
}  // namespace cistron::cuda
