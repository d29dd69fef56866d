#include <array>
#include <memory>

#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/copy.h"
#include "cistron/ops/device_memory.h"

namespace cistron::cuda {

namespace {

constexpr int kMostCards = 64;

class CardMemory final : public MemorySource {
 public:
  std::byte* allocate(int64_t bytes) override {
    const DeviceGuard guard(index);
    void* data = nullptr;
    if (const cudaError_t code = cudaMalloc(&data, static_cast<size_t>(bytes)); code == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw Error(ErrorKind::kOutOfSpace, fmt::format("out of memory: {} bytes asked for", bytes), fmt::format("cuda:{}", index),
                  fmt::format("{} bytes are free", available_memory({DeviceKind::kCuda, index})));
    } else {
      CISTRON_CUDA_CHECK(code);
    }
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, int64_t /*bytes*/) override { static_cast<void>(cudaFree(data)); }
  int index = 0;
};

class SharedMemory final : public MemorySource {
 public:
  std::byte* allocate(int64_t bytes) override {
    const DeviceGuard guard(index);
    void* data = nullptr;
    CISTRON_CUDA_CHECK(cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocMapped | cudaHostAllocPortable));
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, int64_t /*bytes*/) override { static_cast<void>(cudaFreeHost(data)); }
  int index = 0;
};

/// One for each card, and nothing in it but the card's number.
template <class Source>
MemorySource& source_of(const Device& device) {
  static const auto sources = [] {
    auto all = std::make_unique<std::array<Source, kMostCards>>();
    for (int i = 0; i < kMostCards; ++i) (*all)[static_cast<size_t>(i)].index = i;
    return all;
  }();
  CISTRON_CHECK(device.index < kMostCards, "[cuda] card {}: at most {} cards of one host are used", device.index, kMostCards);
  return sources->at(static_cast<size_t>(device.index));
}

}  // namespace

MemorySource& device_memory(const Device& device) { return source_of<CardMemory>(device); }

MemorySource& shared_memory(const Device& device) { return source_of<SharedMemory>(device); }

int64_t available_memory(const Device& device) {
  const DeviceGuard guard(device.index);
  size_t free = 0, total = 0;
  CISTRON_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

void copy(Context& ctx, const ops::Copy& args) {
  const DeviceGuard guard(ctx);
  const bool from_host = args.x.device().is_cpu(), to_host = args.out.device().is_cpu();
  const cudaMemcpyKind kind = from_host ? cudaMemcpyHostToDevice : to_host ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice;
  CISTRON_CUDA_CHECK(cudaMemcpyAsync(args.out.raw(), args.x.raw(), static_cast<size_t>(args.x.bytes()), kind, stream(ctx)));
  if (to_host) CISTRON_CUDA_CHECK(cudaStreamSynchronize(stream(ctx)));
}

}  // namespace cistron::cuda
