#include "cistron/cuda/runtime/runtime.h"

#include <cuda.h>

#include <algorithm>

namespace cistron::cuda {
namespace {

ErrorKind kind_of(cudaError_t code) { return code == cudaErrorMemoryAllocation ? ErrorKind::kOutOfSpace : ErrorKind::kFailed; }

int attribute(const Context& ctx, cudaDeviceAttr wanted) {
  int value = 0;
  CISTRON_CUDA_CHECK(cudaDeviceGetAttribute(&value, wanted, ctx.target().index));
  return value;
}

/// Whether this process already uses the card: setting it makes a context there, half a gigabyte of its memory.
bool has_context(int index) {
  static const auto state = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    CISTRON_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found, 7000, cudaEnableDefault, &result));
    return reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(found);
  }();
  unsigned flags = 0;
  int active = 0;
  return state != nullptr && state(index, &flags, &active) == CUDA_SUCCESS && active != 0;
}

}  // namespace

CudaError::CudaError(cudaError_t code, const char* call, const char* file, int line)
    : Error(kind_of(code),
            fmt::format("CUDA: {} ({}): {}:{}: {}", cudaGetErrorName(code), cudaGetErrorString(code), file, line, call)),
      code_(code) {}

DeviceGuard::DeviceGuard(int index) {
  int before = 0;
  CISTRON_CUDA_CHECK(cudaGetDevice(&before));
  if (before == index) return;
  CISTRON_CUDA_CHECK(cudaSetDevice(index));
  if (has_context(before)) before_ = before;
}

DeviceGuard::~DeviceGuard() {
  if (before_ >= 0) cudaSetDevice(before_);
}

int device_count() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    static_cast<void>(cudaGetLastError());  // or the next launch's check would find it
    return 0;
  }
  CISTRON_CUDA_CHECK(code);
  return count;
}

int multiprocessors(const Context& ctx) {
  const int all = attribute(ctx, cudaDevAttrMultiProcessorCount);
  return ctx.sm_budget > 0 ? std::min(ctx.sm_budget, all) : all;
}

int shared_memory_per_block(const Context& ctx) { return attribute(ctx, cudaDevAttrMaxSharedMemoryPerBlockOptin); }

int compute_capability(const Context& ctx) {
  return 10 * attribute(ctx, cudaDevAttrComputeCapabilityMajor) + attribute(ctx, cudaDevAttrComputeCapabilityMinor);
}

}  // namespace cistron::cuda
