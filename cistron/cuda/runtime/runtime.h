#pragma once
// The CUDA runtime as the backend uses it: checked calls, this context's stream, what its card has. Linked statically; the driver
// is found at run time (`tensor_map.h`), so that programs start where there is none.
#include <cuda_runtime_api.h>

#include "cistron/core/context.h"
#include "cistron/core/error.h"

namespace cistron::cuda {

/// A call that the CUDA runtime refused, with its code.
class CudaError : public Error {
 public:
  CudaError(cudaError_t code, const char* call, const char* file, int line);
  [[nodiscard]] cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

/// Makes a card the current one, and the one before it again in the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  explicit DeviceGuard(const Context& ctx) : DeviceGuard(ctx.device.index) {}
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = -1;  // what to go back to; -1: nothing
};

/// Cards that can be used; 0 where there is no driver.
int device_count();

/// The queue on which a context's kernels run, in order.
inline cudaStream_t stream(const Context& ctx) { return ctx.stream; }

/// Multiprocessors that a persistent kernel may take: `ctx.sm_budget`, or all.
int multiprocessors(const Context& ctx);

/// Bytes that one block may ask for.
int shared_memory_per_block(const Context& ctx);

/// 10 x major + minor: 90 on Hopper.
int compute_capability(const Context& ctx);

}  // namespace cistron::cuda

/// Throws `CudaError` unless the call gives cudaSuccess, and clears the error, so that no later check finds it. After a launch:
/// CISTRON_CUDA_CHECK(cudaGetLastError()).
#define CISTRON_CUDA_CHECK(call)                                                         \
  do {                                                                                   \
    if (const cudaError_t cuda_code_ = (call); cuda_code_ != cudaSuccess) [[unlikely]] { \
      static_cast<void>(cudaGetLastError());                                             \
      throw ::cistron::cuda::CudaError(cuda_code_, #call, __FILE__, __LINE__);           \
    }                                                                                    \
  } while (false)
