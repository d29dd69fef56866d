#pragma once
// How the host learns results without waiting for the device: the device writes them into the host's memory, and then a number by
// which the host knows that they are there.
#include <atomic>
#include <span>

#include "cistron/core/context.h"
#include "cistron/ops/queue.h"

namespace cistron::ops {

constexpr int kMostPublished = 4;

/// Bytes of one slot: the parts one after the other, each from a multiple of 8 on, and the number.
int64_t published_bytes(std::span<const Tensor> parts);

/// Writes the parts, then the number, into slot number % slots.
struct Publish {
  std::span<const Tensor> parts;  // at most kMostPublished, the device's
  const int64_t* number;          // the device's; different from the last ones
  const Tensor& out;              // [slots, published_bytes] u8 of ops::shared_memory
};
void publish(Context& ctx, const Publish& args);

/// Waits, by looking at the host's own memory, until `number` is there; gives the slot's bytes. Throws where the device failed.
std::span<const std::byte> await_published(Queue* queue, const Tensor& out, int64_t number);

}  // namespace cistron::ops

namespace cistron::cuda {
void publish(Context& ctx, const ops::Publish& args);
}  // namespace cistron::cuda
