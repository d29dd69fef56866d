// delta[h, t] = sum over d of dout[t, h, d] out[t, h, d]: what backward takes from each score's gradient.
#include <cuda_bf16.h>

#include "cistron/cuda/attention/flash.h"
#include "cistron/cuda/attention/flash_problem.cuh"

namespace cistron::cuda::flash {
namespace {

__device__ __forceinline__ float as_float(float value) { return value; }
__device__ __forceinline__ float as_float(__nv_bfloat16 value) { return __bfloat162float(value); }

/// A warp for each token and head.
template <class T>
__global__ void delta_kernel(const T* dout, const T* out, float* delta, int tokens, int heads, int dim) {
  const int64_t index = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (index >= static_cast<int64_t>(tokens) * heads) return;
  const int64_t token = index / heads;
  const int64_t head = index % heads;
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x) % 32; d < dim; d += 32)
    sum = fmaf(as_float(dout[index * dim + d]), as_float(out[index * dim + d]), sum);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  if (threadIdx.x % 32 == 0) delta[head * tokens + token] = sum;
}

template <class T>
void launch_delta(Context& ctx, const ops::AttentionBackward& args) {
  const Heads heads = heads_of(args.shape);
  const int64_t warps = args.out.dim(0) * heads.count;
  delta_kernel<T><<<static_cast<unsigned>(ceil_div(warps, 8)), 256, 0, stream(ctx)>>>(
      static_cast<const T*>(args.dout.raw()), static_cast<const T*>(args.out.raw()), args.delta.data<float>(),
      narrow<int>(args.out.dim(0)), heads.count, heads.dim);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void delta(Context& ctx, const ops::AttentionBackward& args) {
  args.qkv.dtype() == DType::kF32 ? launch_delta<float>(ctx, args) : launch_delta<__nv_bfloat16>(ctx, args);
}

}  // namespace cistron::cuda::flash
