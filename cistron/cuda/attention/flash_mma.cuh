#pragma once
// Tiles of attention by mma.sync. Operands lie in shared memory as rows of kD bf16 and 16 bytes of padding, an odd number of
// 16-byte pieces, so that ldmatrix meets no bank twice; columns behind head_dim are zeros. A warp owns kM x 16 rows; its scores
// stay in registers, where an accumulator is already laid out as the left operand of the next product.
#include <cuda_bf16.h>

#include "cistron/cuda/attention/flash_problem.cuh"
#include "cistron/cuda/device/mma.cuh"

namespace cistron::cuda::flash {

using Bf16 = __nv_bfloat16;

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

/// 2^x, relative error 2^-22; 2^-inf is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int kD>
constexpr int kPitch = kD + 8;  // elements
template <int kD, int kRows>
constexpr int kTileBytes = kRows * kPitch<kD> * 2;

/// Rows [first, first + kRows) of a head; zeros from row `end` and column `dim` on.
template <int kD, int kRows, int kThreads>
__device__ __forceinline__ void fetch_rows(uint32_t to, const Bf16* head, int64_t pitch, int first, int end, int dim) {
  constexpr int kPieces = kD / 8;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const int column = i % kPieces * 8;
    const bool inside = first + row < end && column < dim;
    const Bf16* from = head + (inside ? (first + row) * pitch + column : 0);
    device::copy_16(to + static_cast<uint32_t>((row * kPitch<kD> + column) * 2), from, inside);
  }
}

/// What a lane adds to a tile's address: for the left operand's rows, and for the right operand with its lines along or across
/// the contraction.
template <int kD>
struct LaneOffsets {
  int lane = device::lane_index();
  uint32_t left = static_cast<uint32_t>((lane % 16 * kPitch<kD> + lane / 16 * 8) * 2);
  uint32_t along = static_cast<uint32_t>(((lane / 16 * 8 + lane % 8) * kPitch<kD> + lane / 8 % 2 * 8) * 2);
  uint32_t across = static_cast<uint32_t>(((lane / 8 % 2 * 8 + lane % 8) * kPitch<kD> + lane / 16 * 8) * 2);
};

/// sums[16 kM rows, 8 kN columns] = rows x columns^T, contracted over kD; both in shared memory.
template <int kD, int kM, int kN>
__device__ __forceinline__ void multiply_rows(float (&sums)[kM][kN][4], uint32_t rows, uint32_t columns) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (float& value : sums[m][n]) value = 0;
#pragma unroll
  for (int k = 0; k < kD; k += 16) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) device::load_matrices<false>(a[m], rows + static_cast<uint32_t>((m * 16 * kPitch<kD> + k) * 2));
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t b[4];
      device::load_matrices<false>(b, columns + static_cast<uint32_t>((n * 8 * kPitch<kD> + k) * 2));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        device::mma(sums[m][n], a[m], b[0], b[1]);
        device::mma(sums[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

/// sums[16 kM rows, 8 kN of the values] += bf16(left) x values, contracted over the 8 kK rows of `values` in shared memory.
template <int kD, int kM, int kK, int kN>
__device__ __forceinline__ void add_product(float (&sums)[kM][kN][4], const float (&left)[kM][kK][4], uint32_t values) {
#pragma unroll
  for (int k = 0; k < kK; k += 2) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      a[m][0] = pack(left[m][k][0], left[m][k][1]);
      a[m][1] = pack(left[m][k][2], left[m][k][3]);
      a[m][2] = pack(left[m][k + 1][0], left[m][k + 1][1]);
      a[m][3] = pack(left[m][k + 1][2], left[m][k + 1][3]);
    }
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t b[4];
      device::load_matrices<true>(b, values + static_cast<uint32_t>((k * 8 * kPitch<kD> + n * 8) * 2));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        device::mma(sums[m][n], a[m], b[0], b[1]);
        device::mma(sums[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// A warp's sums times `factor[m][half]` as rows of a head, where they exist.
template <int kM, int kN>
__device__ __forceinline__ void store_rows(const float (&sums)[kM][kN][4], const float (&factor)[kM][2], Bf16* head,
                                           int64_t pitch, int first, int end, int dim) {
  const int lane = device::lane_index();
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + m * 16 + half * 8 + lane / 4;
      if (row >= end) continue;
      Bf16* to = head + row * pitch + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kN; ++n)
        if (n * 8 < dim)
          *reinterpret_cast<__nv_bfloat162*>(to + n * 8) =
              __floats2bfloat162_rn(sums[m][n][2 * half] * factor[m][half], sums[m][n][2 * half + 1] * factor[m][half]);
    }
}

/// The ranges of a tile's rows, in shared memory, and what all of them together meet.
template <bool kByKey, int kRows>
struct RowRanges {
  Range row[kRows];
  __device__ __forceinline__ void find(const Sequences& s, int first) {
    for (int i = static_cast<int>(threadIdx.x); i < kRows; i += static_cast<int>(blockDim.x))
      row[i] = columns_of<kByKey>(s, first + i);
    __syncthreads();
  }
  [[nodiscard]] __device__ int begin() const { return row[0].begin; }
  [[nodiscard]] __device__ int end() const { return row[kRows - 1].end; }
  /// Every row meets every column of [first, first + count).
  [[nodiscard]] __device__ bool whole(int first, int count) const {
    return first >= row[kRows - 1].begin && first + count <= row[0].end;
  }
};

}  // namespace cistron::cuda::flash
