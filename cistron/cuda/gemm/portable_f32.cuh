#pragma once
// Grouped products in f32 on ordinary cores: 128 x 128 tiles, 8 x 8 sums a thread, fused multiply-adds in the order of k. An
// oracle and a way to train in f32 on a card; no tensor core rounds here.
#include "cistron/cuda/gemm/portable_problem.cuh"

namespace cistron::cuda {

namespace portable_f32 {

constexpr int kTile = 128;
constexpr int kK = 16;
constexpr int kThreads = 256;

/// stage[k][line]; neighbouring threads read neighbouring addresses.
template <bool kAlong>
__device__ __forceinline__ void fetch(float (&stage)[kK][kTile + 4], const float* from, int64_t pitch, int lines, int depth) {
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kK; i += kThreads) {
    const int line = kAlong ? i / kK : i % kTile;
    const int k = kAlong ? i % kK : i / kTile;
    const int64_t at = kAlong ? line * pitch + k : k * pitch + line;
    stage[k][line] = line < lines && k < depth ? __ldg(from + at) : 0.0F;
  }
}

}  // namespace portable_f32

template <bool kAAlong, bool kBAlong>
__global__ void __launch_bounds__(portable_f32::kThreads, 1) portable_f32_kernel(const PortableProblem p) {
  using namespace portable_f32;
  __shared__ alignas(16) float a[kK][kTile + 4];
  __shared__ alignas(16) float b[kK][kTile + 4];
  const int m = static_cast<int>(threadIdx.x) / 16 * 8;
  const int n = static_cast<int>(threadIdx.x) % 16 * 8;

  ExpertWalk walk;
  PortableTile<float> tile;
  for (int32_t index = static_cast<int32_t>(blockIdx.x);
       portable_tile<float, kTile, kTile, kAAlong, kBAlong>(p, walk, index, tile); index += static_cast<int32_t>(gridDim.x)) {
    float sums[8][8] = {};
    for (int k0 = 0; k0 < tile.k; k0 += kK) {
      fetch<kAAlong>(a, tile.a + (kAAlong ? k0 : k0 * p.a_pitch), p.a_pitch, tile.m, tile.k - k0);
      fetch<kBAlong>(b, tile.b + (kBAlong ? k0 : k0 * p.b_pitch), p.b_pitch, tile.n, tile.k - k0);
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kK; ++k)
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
          for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(a[k][m + i], b[k][n + j], sums[i][j]);
      __syncthreads();
    }
    float* out = static_cast<float*>(p.out) + tile.out;
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (m + i >= tile.m || n + j >= tile.n) continue;
        float& to = out[(m + i) * p.n + n + j];
        to = p.accumulate ? to + sums[i][j] : sums[i][j];
      }
  }
}

}  // namespace cistron::cuda
