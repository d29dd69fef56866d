#include "cistron/ops/publish.h"

#include <chrono>
#include <cstring>
#include <thread>

#include "cistron/core/checked.h"
#include "cistron/core/error.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {

namespace {

void publish_on_host(Context& /*ctx*/, const Publish& args) {
  auto* to = static_cast<std::byte*>(args.out.raw()) + *args.number % args.out.dim(0) * args.out.dim(1);
  for (const Tensor& part : args.parts) {
    std::memcpy(to, part.raw(), static_cast<size_t>(part.bytes()));
    to += round_up(part.bytes(), 8);
  }
  std::memcpy(to, args.number, sizeof(int64_t));
}

}  // namespace

int64_t published_bytes(std::span<const Tensor> parts) {
  int64_t bytes = sizeof(int64_t);
  for (const Tensor& part : parts) bytes += round_up(part.bytes(), 8);
  return bytes;
}

void publish(Context& ctx, const Publish& args) {
  CISTRON_CHECK(std::ssize(args.parts) <= kMostPublished, "[publish] {} parts", args.parts.size());
  if (ctx.device.is_meta()) return;  // results lie outside the plan
  check_tensor("publish", "out", args.out, {args.out.dim(0), published_bytes(args.parts)}, DType::kU8);
  dispatch("publish", ctx, args, publish_on_host, cuda::publish);
}

std::span<const std::byte> await_published(Queue* queue, const Tensor& out, int64_t number) {
  const auto size = static_cast<size_t>(out.dim(1));
  auto* slot = static_cast<std::byte*>(out.raw()) + static_cast<size_t>(number % out.dim(0)) * size;
  const std::atomic_ref<int64_t> there(*reinterpret_cast<int64_t*>(slot + size - sizeof(int64_t)));
  for (int64_t looks = 1; there.load(std::memory_order_acquire) != number; ++looks) {
    CISTRON_CHECK(queue != nullptr, "[publish] number {} was never written", number);
    if (looks % 64 != 0) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (looks % 65536 == 0 && queue->is_idle())
      CISTRON_CHECK(there.load(std::memory_order_acquire) == number, "[publish] number {} was never written", number);
  }
  return {slot, size};
}

}  // namespace cistron::ops
