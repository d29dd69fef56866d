#pragma once
// Tiles of attention on ordinary cores, in f32. 256 threads as 16 x 16; a tile is kTile rows by kTile columns, R = kTile / 16
// each for a thread: rows R y .. R y + R - 1, columns x, x + 16, ... Operands lie in shared memory as rows of kD + 4 floats, so
// that the 16-byte words of neighbouring rows lie in different banks; zeros behind head_dim.
#include <cuda_bf16.h>

#include "cistron/cuda/attention/flash_problem.cuh"
#include "cistron/cuda/device/chunk.cuh"

namespace cistron::cuda::flash::simt {

constexpr int kThreads = 256;

template <int kHeadDim>
struct Tile {
  static constexpr int kD = kHeadDim;
  static constexpr int kTile = kD <= 64 ? 64 : 32;
  static constexpr int kR = kTile / 16;
  static constexpr int kPitch = kD + 4;
  static constexpr int kOwn = kD / 16;                 // output columns of a thread,
  static constexpr int kVector = kOwn < 4 ? kOwn : 4;  // so many next to each other
  static constexpr int kOperand = kTile * kPitch;      // floats
  static constexpr int kTurnedPitch = kTile + 4;
  static constexpr int kTurned = kTile * kTurnedPitch;
};

__device__ __forceinline__ int thread_x() { return static_cast<int>(threadIdx.x) % 16; }
__device__ __forceinline__ int thread_y() { return static_cast<int>(threadIdx.x) / 16; }

using device::as_float, device::put;

/// Rows [first, first + kTile) of a head; zeros from row `end` and column `dim` on.
template <class Tile, class T>
__device__ __forceinline__ void fetch(float* to, const T* head, int64_t pitch, int first, int end, int dim) {
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kTile * Tile::kD; i += kThreads) {
    const int row = i / Tile::kD;
    const int column = i % Tile::kD;
    const bool inside = first + row < end && column < dim;
    to[row * Tile::kPitch + column] = inside ? as_float(head[(first + row) * pitch + column]) : 0.0F;
  }
}

/// sums[i][j] = row R y + i of `rows` times row x + 16 j of `columns`.
template <class Tile>
__device__ __forceinline__ void multiply_rows(float (&sums)[Tile::kR][Tile::kR], const float* rows, const float* columns) {
  constexpr int kR = Tile::kR;
#pragma unroll
  for (int i = 0; i < kR; ++i)
#pragma unroll
    for (int j = 0; j < kR; ++j) sums[i][j] = 0;
#pragma unroll 4
  for (int d = 0; d < Tile::kD; d += 4) {
    float4 a[kR];
    float4 b[kR];
#pragma unroll
    for (int i = 0; i < kR; ++i) a[i] = *reinterpret_cast<const float4*>(rows + (thread_y() * kR + i) * Tile::kPitch + d);
#pragma unroll
    for (int j = 0; j < kR; ++j) b[j] = *reinterpret_cast<const float4*>(columns + (thread_x() + 16 * j) * Tile::kPitch + d);
#pragma unroll
    for (int i = 0; i < kR; ++i)
#pragma unroll
      for (int j = 0; j < kR; ++j) {
        sums[i][j] = fmaf(a[i].x, b[j].x, sums[i][j]);
        sums[i][j] = fmaf(a[i].y, b[j].y, sums[i][j]);
        sums[i][j] = fmaf(a[i].z, b[j].z, sums[i][j]);
        sums[i][j] = fmaf(a[i].w, b[j].w, sums[i][j]);
      }
  }
}

/// Scores to shared memory, turned: [column][row].
template <class Tile>
__device__ __forceinline__ void turn(float* to, const float (&scores)[Tile::kR][Tile::kR]) {
#pragma unroll
  for (int j = 0; j < Tile::kR; ++j)
#pragma unroll
    for (int i = 0; i < Tile::kR; ++i) to[(thread_x() + 16 * j) * Tile::kTurnedPitch + thread_y() * Tile::kR + i] = scores[i][j];
}

/// Column of a head that a thread's output number c is.
template <class Tile>
__device__ __forceinline__ int own_column(int c) {
  return thread_x() * Tile::kVector + c / Tile::kVector * 16 * Tile::kVector + c % Tile::kVector;
}

/// sums[i][c] += sum over k of turned[k][R y + i] values[k][own column c].
template <class Tile>
__device__ __forceinline__ void add_product(float (&sums)[Tile::kR][Tile::kOwn], const float* turned, const float* values) {
#pragma unroll 4
  for (int k = 0; k < Tile::kTile; ++k) {
    float a[Tile::kR];
#pragma unroll
    for (int i = 0; i < Tile::kR; ++i) a[i] = turned[k * Tile::kTurnedPitch + thread_y() * Tile::kR + i];
#pragma unroll
    for (int c = 0; c < Tile::kOwn; ++c) {
      const float b = values[k * Tile::kPitch + own_column<Tile>(c)];
#pragma unroll
      for (int i = 0; i < Tile::kR; ++i) sums[i][c] = fmaf(a[i], b, sums[i][c]);
    }
  }
}

/// A thread's outputs times `factor[i]`, where they exist.
template <class Tile, class T>
__device__ __forceinline__ void store(const float (&sums)[Tile::kR][Tile::kOwn], const float (&factor)[Tile::kR], T* head,
                                      int64_t pitch, int first, int end, int dim) {
#pragma unroll
  for (int i = 0; i < Tile::kR; ++i) {
    const int row = first + thread_y() * Tile::kR + i;
    if (row >= end) continue;
#pragma unroll
    for (int c = 0; c < Tile::kOwn; ++c)
      if (own_column<Tile>(c) < dim) put(head[row * pitch + own_column<Tile>(c)], sums[i][c] * factor[i]);
  }
}

/// Over the 16 threads of a row.
template <class F>
__device__ __forceinline__ float reduce_row(float value, F&& f) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) value = f(value, __shfl_xor_sync(~0U, value, step));
  return value;
}

}  // namespace cistron::cuda::flash::simt
