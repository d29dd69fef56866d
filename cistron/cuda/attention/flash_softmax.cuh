#pragma once
// The online softmax of a warp's rows, its scores laid out as accumulators of tensor cores (mma.sync, wgmma).
#include <cmath>

#include "cistron/cuda/attention/flash_mma.cuh"

namespace cistron::cuda::flash {

/// Largest raw score of each row so far, and this lane's part of the sum of exp(scale (score - largest)).
template <int kM>
struct OnlineSoftmax {
  float max[kM][2];
  float sum[kM][2];
  float factor[kM][2];

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        max[m][half] = -INFINITY;
        sum[m][half] = 0;
      }
  }

  /// Scores become probabilities over the new largest; what was summed before must `shrink`.
  template <int kN>
  __device__ __forceinline__ void take(float (&scores)[kM][kN][4], float scale) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float before = max[m][half];
        float now = before;
#pragma unroll
        for (int n = 0; n < kN; ++n) now = fmaxf(now, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        now = fmaxf(now, __shfl_xor_sync(~0U, now, 1));
        now = fmaxf(now, __shfl_xor_sync(~0U, now, 2));
        const float offset = now == -INFINITY ? 0.0F : now * scale;  // a row that has met nothing yet
        float total = 0;
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            scores[m][n][i] = exp2_fast(fmaf(scores[m][n][i], scale, -offset));
            total += scores[m][n][i];
          }
        factor[m][half] = exp2_fast(before * scale - offset);
        max[m][half] = now;
        sum[m][half] = fmaf(sum[m][half], factor[m][half], total);
      }
  }

  template <int kOut>
  __device__ __forceinline__ void shrink(float (&out)[kM][kOut][4]) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (__all_sync(~0U, factor[m][half] == 1.0F)) continue;
#pragma unroll
        for (int n = 0; n < kOut; ++n) {
          out[m][n][2 * half] *= factor[m][half];
          out[m][n][2 * half + 1] *= factor[m][half];
        }
      }
  }

  /// Sums of whole rows.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] += __shfl_xor_sync(~0U, sum[m][half], 1);
        sum[m][half] += __shfl_xor_sync(~0U, sum[m][half], 2);
      }
  }

  /// 1 / sum, 0 for a row that met nothing.
  __device__ __forceinline__ void inverse(float (&of)[kM][2]) const {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) of[m][half] = sum[m][half] > 0 ? 1.0F / sum[m][half] : 0.0F;
  }
};

/// -inf where a row does not meet a column; `row` is the warp's first, `first` the first column.
template <int kM, int kN>
__device__ __forceinline__ void mask_scores(float (&scores)[kM][kN][4], const Range* row, int first) {
  const int lane = device::lane_index();
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Range range = row[m * 16 + half * 8 + lane / 4];
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = first + n * 8 + lane % 4 * 2 + i;
          if (column < range.begin || column >= range.end) scores[m][n][2 * half + i] = -INFINITY;
        }
    }
}

template <int kM>
__device__ __forceinline__ void store_lse(const OnlineSoftmax<kM>& softmax, float scale, float* lse, int first, int end) {
  const int lane = device::lane_index();
  if (lane % 4 != 0) return;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8 + lane / 4;
      if (row < end) lse[row] = fmaf(softmax.max[m][half], scale, logf(softmax.sum[m][half]));
    }
}

}  // namespace cistron::cuda::flash
