#pragma once
// A grouped product as one kernel sees it, and how its tiles reach the warps that work on them.
#include <cuda.h>

#include "cistron/cuda/device/wgmma.cuh"
#include "cistron/cuda/gemm/sm90_pipeline.cuh"
#include "cistron/cuda/gemm/sm90_schedule.h"

namespace cistron::cuda::sm90 {

struct Problem : Extent {
  CUtensorMap a, b;
  const uint8_t* a_scales;  // [groups along the contraction, a_scale_pitch]
  const uint8_t* b_scales;  // the same, or of weights [E, b_scale_blocks, b_scale_pitch]
  int a_scale_pitch, b_scale_pitch, b_scale_blocks;
  int b_step;  // rows of B from a box to the next: a box's own, or from gate's to up's
};

/// By the first warp: `ends[e]` = pairs of tiles up to and including expert e.
template <bool kRagged>
__device__ __forceinline__ void count_pairs(const Extent& extent, int tile_n, int* ends) {
  int before = 0;
  for (int base = 0; base < extent.experts; base += device::kWarp) {
    const int e = base + device::lane_index();
    int sum = e < extent.experts ? extent.pairs<kRagged>(extent.rows_of(e), tile_n) : 0;
#pragma unroll
    for (int step = 1; step < device::kWarp; step *= 2) {
      const int other = __shfl_up_sync(~0U, sum, step);
      if (device::lane_index() >= step) sum += other;
    }
    if (e < extent.experts) ends[e] = before + sum;
    before += __shfl_sync(~0U, sum, device::kWarp - 1);
  }
}

/// Where a math warp works in every tile.
struct MathWarp {
  int row = device::warp_index() * 16;                              // its first
  uint32_t panel = device::warp_index() / 4 * device::kPanelBytes;  // its warpgroup's 64 rows of A, in a stage
  int thread_row = row + device::lane_index() / 4;                  // of the thread's first sums; others 8 further
  int thread_pair = device::lane_index() % 4;                       // of columns in eight
};

/// Tiles on their way from the thread that picks them to the warps that work on them, so that nobody else waits for the picking
/// (reads of global memory, divisions). A tile lies in shared memory until every reader is done with it; all lanes of a reading
/// warp are readers.
struct TileRing {
  static constexpr uint32_t kSlots = 4;
  static constexpr uint32_t kBarrierBytes = 2 * kSlots * 8;
  static constexpr uint32_t kBytes = kBarrierBytes + kSlots * sizeof(Tile);

  uint32_t barriers;  // full[kSlots], empty[kSlots]
  Tile* tiles;
  uint32_t count = 0;

  /// By one thread, ahead of its fence_barrier_init.
  __device__ void init(int reading_warps) const {
#pragma unroll
    for (uint32_t s = 0; s < kSlots; ++s) {
      device::barrier_init(barriers + s * 8, 1);
      device::barrier_init(barriers + (kSlots + s) * 8, reading_warps * device::kWarp);
    }
  }
  /// By the thread that picks.
  __device__ void put(const Tile& tile) {
    device::barrier_wait(empty(), phase() ^ 1);
    tiles[slot()] = tile;
    device::barrier_arrive(full());
    ++count;
  }
  /// By the readers: the next tile, where it lies, until `release`.
  [[nodiscard]] __device__ const Tile& get() const {
    device::barrier_wait(full(), phase());
    return tiles[slot()];
  }
  /// By every reader, done with it.
  __device__ void release() {
    device::barrier_arrive(empty());
    ++count;
  }

 private:
  [[nodiscard]] __device__ uint32_t slot() const { return count % kSlots; }
  [[nodiscard]] __device__ uint32_t phase() const { return count / kSlots % 2; }
  [[nodiscard]] __device__ uint32_t full() const { return barriers + slot() * 8; }
  [[nodiscard]] __device__ uint32_t empty() const { return full() + kSlots * 8; }
};

}  // namespace cistron::cuda::sm90
