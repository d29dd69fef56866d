#include "cistron/cuda/runtime/runtime.h"

#include <algorithm>

namespace cistron::cuda {
namespace {

ErrorKind kind_of(cudaError_t code) { return code == cudaErrorMemoryAllocation ? ErrorKind::kOutOfSpace : ErrorKind::kFailed; }

int attribute(const Context& ctx, cudaDeviceAttr wanted) {
  int value = 0;
  CISTRON_CUDA_CHECK(cudaDeviceGetAttribute(&value, wanted, ctx.target().index));
  return value;
}

}  // namespace

CudaError::CudaError(cudaError_t code, const char* call, const char* file, int line)
    : Error(kind_of(code),
            fmt::format("CUDA: {} ({}): {}:{}: {}", cudaGetErrorName(code), cudaGetErrorString(code), file, line, call)),
      code_(code) {}

DeviceGuard::DeviceGuard(int index) {
  CISTRON_CUDA_CHECK(cudaGetDevice(&before_));
  CISTRON_CUDA_CHECK(cudaSetDevice(index));
}

DeviceGuard::~DeviceGuard() { cudaSetDevice(before_); }

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
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
