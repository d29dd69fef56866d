#pragma once
// How blocks are laid over the rows of one expert each, and threads over their columns.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/ptx.cuh"
#include "cistron/ops/grouped_bias.h"

namespace cistron::cuda {

constexpr int kBiasWarps = 8;                                                     // of a block
constexpr int kBiasWarpRows = static_cast<int>(ops::kBiasTileRows) / kBiasWarps;  // of a warp, kBiasWarps apart
constexpr int kBiasThreadColumns = static_cast<int>(ops::kBiasTileColumns) / 32;

/// The rows of `Groups` in tiles of one expert each. Expert e's first tile has number starts[e] / kBiasTileRows + e: no two tiles
/// share one, some numbers have none, and the largest is less than R / kBiasTileRows + E.
struct BiasTiles {
  const int32_t *starts, *counts;
  int32_t experts;

  explicit BiasTiles(const ops::Groups& groups)
      : starts(device::pointer<const int32_t>(groups.starts)),
        counts(device::pointer<const int32_t>(groups.counts)),
        experts(narrow<int32_t>(groups.num_experts())) {}

  __device__ __forceinline__ int32_t first_tile(int32_t e) const {
    return __ldg(starts + e) / static_cast<int32_t>(ops::kBiasTileRows) + e;
  }
  __device__ __forceinline__ int32_t tiles_of(int32_t e) const {
    constexpr auto kRows = static_cast<int32_t>(ops::kBiasTileRows);
    return (__ldg(counts + e) + kRows - 1) / kRows;
  }
};

/// Tile number `tile`: without rows where there is none.
struct BiasTile {
  int32_t expert = 0, begin = 0, end = 0;

  __device__ __forceinline__ BiasTile(const BiasTiles& tiles, int32_t tile) {
    for (int32_t above = tiles.experts; above - expert > 1;) {
      const int32_t middle = (expert + above) / 2;
      (tiles.first_tile(middle) <= tile ? expert : above) = middle;
    }
    constexpr auto kRows = static_cast<int32_t>(ops::kBiasTileRows);
    const int32_t start = __ldg(tiles.starts + expert);
    begin = start + (tile - tiles.first_tile(expert)) * kRows;
    end = min(begin + kRows, start + __ldg(tiles.counts + expert));
  }
};

inline dim3 bias_grid(const ops::Groups& groups, int64_t width) {
  const int64_t tiles = groups.max_rows() / ops::kBiasTileRows + groups.num_experts();
  CISTRON_CHECK(tiles < 65536, "[grouped_bias] {} rows are more than one launch takes", groups.max_rows());
  return {narrow<uint32_t>(ceil_div(width, ops::kBiasTileColumns)), narrow<uint32_t>(tiles)};
}

/// A thread's columns of a tile: kBiasThreadColumns / kWidth chunks, a warp apart.
template <int kWidth>
struct BiasColumns {
  static constexpr int kChunks = kBiasThreadColumns / kWidth;
  int first, row_chunks;

  __device__ __forceinline__ explicit BiasColumns(int row_chunks)
      : first(static_cast<int>(blockIdx.x * (ops::kBiasTileColumns / kWidth) + threadIdx.x)), row_chunks(row_chunks) {}
  [[nodiscard]] __device__ __forceinline__ int chunk(int i) const { return first + i * device::kWarp; }
  [[nodiscard]] __device__ __forceinline__ bool inside(int i) const { return chunk(i) < row_chunks; }

  /// Of line `line` of [., N]; zeros beyond the last column.
  template <class T>
  __device__ __forceinline__ void load(device::Chunk<T, kWidth> (&to)[kChunks], const T* from, int64_t line) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
      if (inside(i)) to[i] = device::load_chunk<kWidth>(from, line * row_chunks + chunk(i));
  }
};

}  // namespace cistron::cuda
