// x [m, k] w [n, k]^T in f32 with few columns: a router's logits. The rows of x pass once, 16 bytes a lane, kRows rows a warp;
// the lanes' sums are added at the end, in a fixed order. w comes from the cache.
#include "cistron/core/checked.h"
#include "cistron/cuda/device/ptx.cuh"
#include "cistron/cuda/gemm/dense.h"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {
namespace {

using device::kWarp;
constexpr int kThreads = 128;

struct SkinnyProblem {
  const float *x, *w;
  float* out;
  int64_t x_pitch, w_pitch, out_pitch, m;
  int n, k;
};

__device__ __forceinline__ float dot(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

template <int kColumns, int kRows>
__global__ void __launch_bounds__(kThreads, 3) skinny_kernel(const SkinnyProblem p) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp) * kRows;
  float sums[kRows][kColumns] = {};
#pragma unroll 1
  for (int k = lane * 4; k < p.k; k += 4 * kWarp) {
    float4 x[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r < p.m ? first + r : p.m - 1;
      x[r] = __ldcs(reinterpret_cast<const float4*>(p.x + row * p.x_pitch + k));
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const float4 w = __ldg(reinterpret_cast<const float4*>(p.w + (n < p.n ? n : 0) * p.w_pitch + k));
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r][n] = dot(x[r], w, sums[r][n]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int step = kWarp / 2; step > 0; step /= 2) sums[r][n] += __shfl_xor_sync(~0U, sums[r][n], step);
      if (lane == n && n < p.n && first + r < p.m) p.out[(first + r) * p.out_pitch + n] = sums[r][n];
    }
}

template <int kColumns, int kRows>
void launch(Context& ctx, const SkinnyProblem& p) {
  const auto blocks = static_cast<unsigned>(ceil_div(p.m, kThreads / kWarp * kRows));
  skinny_kernel<kColumns, kRows><<<blocks, kThreads, 0, stream(ctx)>>>(p);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

bool words_of_4(const DenseOperand& operand) {
  return operand.along && operand.pitch % 4 == 0 && reinterpret_cast<uintptr_t>(operand.data) % 16 == 0;
}

}  // namespace

bool skinny_takes(const DenseProduct& p) {
  return p.in == DType::kF32 && !p.accumulate && p.n <= 16 && p.k % 4 == 0 && words_of_4(p.a) && words_of_4(p.b);
}

void skinny_dense(Context& ctx, const DenseProduct& p) {
  const SkinnyProblem problem{.x = static_cast<const float*>(p.a.data),
                              .w = static_cast<const float*>(p.b.data),
                              .out = static_cast<float*>(p.out),
                              .x_pitch = p.a.pitch,
                              .w_pitch = p.b.pitch,
                              .out_pitch = p.out_pitch,
                              .m = p.m,
                              .n = narrow<int>(p.n),
                              .k = narrow<int>(p.k)};
  problem.n <= 8 ? launch<8, 8>(ctx, problem) : launch<16, 4>(ctx, problem);
}

}  // namespace cistron::cuda
