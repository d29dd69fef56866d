// Small kernels at a step's end: one block each, in a fixed order.
#include <cstring>

#include "cistron/core/checked.h"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/publish.h"
#include "cistron/ops/step_guard.h"

namespace cistron::cuda {
namespace {

struct Parts {
  const char* data[ops::kMostPublished];
  int64_t bytes[ops::kMostPublished];
  int count;
};

/// Whole words, then the bytes that are left; sources are 16-byte aligned (an arena's), destinations 8-byte.
__device__ void copy_part(const char* from, char* to, int64_t bytes) {
  const int64_t words = bytes / 8;
  for (int64_t i = threadIdx.x; i < words; i += blockDim.x)
    reinterpret_cast<int64_t*>(to)[i] = reinterpret_cast<const int64_t*>(from)[i];
  for (int64_t i = 8 * words + threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

__global__ void publish_kernel(Parts parts, const int64_t* number, char* out, int64_t slots, int64_t slot_bytes) {
  char* slot = out + *number % slots * slot_bytes;
  char* to = slot;
  for (int p = 0; p < parts.count; ++p) {
    copy_part(parts.data[p], to, parts.bytes[p]);
    to += (parts.bytes[p] + 7) / 8 * 8;
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *reinterpret_cast<volatile int64_t*>(slot + slot_bytes - sizeof(int64_t)) = *number;
}

__global__ void step_guard_kernel(const double* loss, StepState* state) {
  if (state->halted != 0 || !isfinite(*loss)) state->finite = 0;
  state->halted = state->finite == 0 ? 1 : 0;
}

}  // namespace

void publish(Context& ctx, const ops::Publish& args) {
  const DeviceGuard guard(ctx);
  Parts parts{};
  for (const Tensor& part : args.parts) {
    parts.data[parts.count] = static_cast<const char*>(part.raw());
    parts.bytes[parts.count++] = part.bytes();
  }
  publish_kernel<<<1, 512, 0, stream(ctx)>>>(parts, args.number, static_cast<char*>(args.out.raw()), args.out.dim(0),
                                             args.out.dim(1));
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

void step_guard(Context& ctx, const ops::StepGuard& args) {
  const DeviceGuard guard(ctx);
  step_guard_kernel<<<1, 1, 0, stream(ctx)>>>(args.loss.data<double>(), args.state);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace cistron::cuda
