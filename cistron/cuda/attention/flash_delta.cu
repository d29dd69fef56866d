// delta[h, t] = sum over d of dout[t, h, d] out[t, h, d]: what backward takes from each score's gradient.
#include <cuda_bf16.h>

#include "cistron/cuda/attention/flash.h"
#include "cistron/cuda/attention/flash_problem.cuh"
#include "cistron/cuda/device/chunk.cuh"

namespace cistron::cuda::flash {
namespace {

constexpr int kThreads = 256;

struct DeltaProblem {
  const void *dout, *out;  // [tokens x heads, dim]
  float* delta;            // [heads, tokens]
  int64_t tokens;
  int heads, dim;
  /// Row r of out is token r / heads, head r % heads.
  __device__ __forceinline__ void store(int64_t row, float sum) const { delta[row % heads * tokens + row / heads] = sum; }
};

using device::as_float;

/// Of 16 bytes of each.
template <class T>
__device__ __forceinline__ float dot(const uint4& a, const uint4& b) {
  const T* x = reinterpret_cast<const T*>(&a);
  const T* y = reinterpret_cast<const T*>(&b);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < static_cast<int>(16 / sizeof(T)); ++i) sum = fmaf(as_float(x[i]), as_float(y[i]), sum);
  return sum;
}

/// Rows of kPieces x 16 bytes, 1024 pieces a block: each thread multiplies four, then one thread adds a row's, in order.
template <class T, int kPieces>
__global__ void __launch_bounds__(kThreads) delta_kernel(const DeltaProblem p) {
  constexpr int kEach = 4;
  constexpr int kRows = kEach * kThreads / kPieces;
  __shared__ float sums[kRows][kPieces + 1];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  const int64_t all = p.tokens * p.heads;
  const int rows = static_cast<int>(all - first < kRows ? all - first : kRows);
  uint4 dout[kEach];
  uint4 out[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int piece = i * kThreads + static_cast<int>(threadIdx.x);
    if (piece >= rows * kPieces) continue;
    dout[i] = __ldg(static_cast<const uint4*>(p.dout) + first * kPieces + piece);
    out[i] = __ldg(static_cast<const uint4*>(p.out) + first * kPieces + piece);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int piece = i * kThreads + static_cast<int>(threadIdx.x);
    if (piece < rows * kPieces) sums[piece / kPieces][piece % kPieces] = dot<T>(dout[i], out[i]);
  }
  __syncthreads();
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += kThreads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) sum += sums[row][i];
    p.store(first + row, sum);
  }
}

/// Any head_dim: a warp for each row.
template <class T>
__global__ void __launch_bounds__(kThreads) delta_by_warp_kernel(const DeltaProblem p) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (row >= p.tokens * p.heads) return;
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x) % 32; d < p.dim; d += 32)
    sum = fmaf(as_float(static_cast<const T*>(p.dout)[row * p.dim + d]), as_float(static_cast<const T*>(p.out)[row * p.dim + d]),
               sum);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  if (threadIdx.x % 32 == 0) p.store(row, sum);
}

void run(Context& ctx, void (*kernel)(DeltaProblem), int64_t rows_a_block, const DeltaProblem& p) {
  kernel<<<static_cast<unsigned>(ceil_div(p.tokens * p.heads, rows_a_block)), kThreads, 0, stream(ctx)>>>(p);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

template <class T, int kPieces>
void run_pieces(Context& ctx, const DeltaProblem& p) {
  run(ctx, delta_kernel<T, kPieces>, 4 * kThreads / kPieces, p);
}

}  // namespace

void delta(Context& ctx, const ops::AttentionBackward& args) {
  const Heads heads = heads_of(args.shape);
  const DeltaProblem p{.dout = args.dout.raw(),
                       .out = args.out.raw(),
                       .delta = args.delta.data<float>(),
                       .tokens = args.out.dim(0),
                       .heads = heads.count,
                       .dim = heads.dim};
  if (args.out.dtype() == DType::kF32) return run(ctx, delta_by_warp_kernel<float>, kThreads / 32, p);
  if (p.dim == 64) return run_pieces<__nv_bfloat16, 8>(ctx, p);
  if (p.dim == 80) return run_pieces<__nv_bfloat16, 10>(ctx, p);
  if (p.dim == 128) return run_pieces<__nv_bfloat16, 16>(ctx, p);
  run(ctx, delta_by_warp_kernel<__nv_bfloat16>, kThreads / 32, p);
}

}  // namespace cistron::cuda::flash
