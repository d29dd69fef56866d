#pragma once
// A grouped product as one kernel sees it, and the walk over its tiles. For each expert e:
//   rows by expert:         out[r, n] = sum over k of A[r, k] B[e](n, k)      r in the expert's segment; k < K
//   contraction by expert:  out[e, m, n] = sum over r of A(m, r) B(n, r)      r in the expert's segment (wgrad)
// Numbers are 32-bit: the launcher refuses more.
#include <cuda.h>

#include "cistron/cuda/device/ptx.cuh"
#include "cistron/cuda/gemm/sm90_pipeline.cuh"
#include "cistron/cuda/gemm/sm90_schedule.h"

namespace cistron::cuda::sm90 {

struct Problem {
  CUtensorMap a, b;
  const int32_t* starts;  // null: one group from row 0 on, of dense_rows rows
  const int32_t* counts;
  const uint8_t* a_scales;  // [groups along the contraction, a_scale_pitch]
  const uint8_t* b_scales;  // the same, or of weights [E, b_scale_blocks, b_scale_pitch]
  int a_scale_pitch, b_scale_pitch, b_scale_blocks;
  int b_step;       // rows of B from a box to the next
  int experts;
  int dense_rows;
  int m;            // rows of out, where the contraction is by expert
  int n;            // columns of a section of out
  int sections;     // parts of the columns in which tiles are counted afresh
  int k;            // contraction, where the rows are by expert
  bool skip_empty;  // contraction by expert: leave the outputs of experts without rows alone
};

__device__ __forceinline__ int start_of(const Problem& p, int expert) { return p.starts == nullptr ? 0 : p.starts[expert]; }
__device__ __forceinline__ int rows_of(const Problem& p, int expert) {
  return p.counts == nullptr ? p.dense_rows : p.counts[expert];
}

/// One block's tile.
struct Tile {
  int expert;
  int row;      // first row, of A and of out
  int rows;     // from there on, how many count; none where the tile is not stored
  int n;        // first row of B
  int section;  // of out's columns
  int column;   // first of out, in its section
  int first_k;  // where the contraction starts
  int k_blocks;
  bool shares_a;
};

__device__ __forceinline__ int column_tiles(const Problem& p, int tile_n) { return p.sections * ((p.n + tile_n - 1) / tile_n); }

/// By the first warp: `ends[e]` = pairs of tiles up to and including expert e.
template <bool kRagged>
__device__ __forceinline__ void count_pairs(const Problem& p, int tile_n, int* ends) {
  const int n_tiles = column_tiles(p, tile_n);
  int before = 0;
  for (int base = 0; base < p.experts; base += device::kWarp) {
    const int e = base + device::lane_index();
    const int count = e < p.experts ? rows_of(p, e) : 0;
    const bool skipped = e >= p.experts || (kRagged && p.skip_empty && count == 0);
    int sum = skipped ? 0 : TileGrid{((kRagged ? p.m : count) + kTileM - 1) / kTileM, n_tiles}.pairs();
#pragma unroll
    for (int step = 1; step < device::kWarp; step *= 2) {
      const int other = __shfl_up_sync(~0U, sum, step);
      if (device::lane_index() >= step) sum += other;
    }
    if (e < p.experts) ends[e] = before + sum;
    before += __shfl_sync(~0U, sum, device::kWarp - 1);
  }
}

/// The tiles of one block, the same on every thread.
template <bool kRagged, int kTileN, int kBlockK>
class TileWalk {
 public:
  __device__ TileWalk(const Problem& p, const int* ends)
      : p_(p), ends_(ends), pair_(static_cast<int>(blockIdx.x) / kClusterSize) {}

  __device__ bool next(Tile& tile) {
    if (pair_ >= ends_[p_.experts - 1]) return false;
    find_expert();
    const int m = kRagged ? p_.m : count_;
    const int n_tiles = column_tiles(p_, kTileN);
    const TilePair at = TileGrid{(m + kTileM - 1) / kTileM, n_tiles}.at(pair_ - before(expert_));
    const int rank = device::cluster_rank();
    const int local = (at.m + (at.shares_a ? 0 : rank)) * kTileM;
    tile.expert = expert_;
    tile.row = (kRagged ? 0 : start_) + local;
    const int wanted = at.n + (at.shares_a ? rank : 0);
    const int n = wanted < n_tiles ? wanted : n_tiles - 1;  // an odd tile's partner repeats it, and stores nothing
    const int section_tiles = (p_.n + kTileN - 1) / kTileN;
    tile.rows = wanted < n_tiles ? m - local : 0;
    tile.section = p_.sections == 1 ? 0 : n / section_tiles;
    tile.column = (n - tile.section * section_tiles) * kTileN;
    tile.n = tile.section * p_.n + tile.column;
    tile.first_k = kRagged ? start_ : 0;
    tile.k_blocks = ((kRagged ? count_ : p_.k) + kBlockK - 1) / kBlockK;
    tile.shares_a = at.shares_a;
    pair_ += static_cast<int>(gridDim.x) / kClusterSize;
    return true;
  }

 private:
  /// Reads global memory only where an expert begins: the tiles wait for this.
  __device__ void find_expert() {
    if (expert_ >= 0 && pair_ < ends_[expert_]) return;
    do ++expert_;
    while (pair_ >= ends_[expert_]);
    start_ = start_of(p_, expert_);
    count_ = rows_of(p_, expert_);
  }

  [[nodiscard]] __device__ int before(int expert) const { return expert == 0 ? 0 : ends_[expert - 1]; }

  const Problem& p_;
  const int* ends_;
  int pair_;
  int expert_ = -1;
  int start_ = 0;
  int count_ = 0;
};

}  // namespace cistron::cuda::sm90
