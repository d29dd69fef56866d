#pragma once
// A stable counting sort in two launches, the same for every run: items are cut into at most 128 tiles; one block counts a tile's
// keys; then every block adds up the counts of all tiles, which gives where each bin begins and where its own items go.
#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/cuda/device/reduce.cuh"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/scratch.h"

namespace cistron::cuda::device {

constexpr int kSortThreads = 1024;
constexpr int kSortWarps = kSortThreads / kWarp;
constexpr int kMaxBins = ops::kMaxSortBins;

struct SortShape {
  int32_t items;
  int32_t tile;  // items of a tile
  int32_t tiles;
  int32_t bins;
  int32_t alignment;  // a bin begins at a multiple of it

  SortShape(int64_t count, int64_t num_bins, int64_t align)
      : items(narrow<int32_t>(count)),
        tile(narrow<int32_t>(round_up(std::max<int64_t>(1, ceil_div(count, ops::kSortTiles)), kSortThreads))),
        tiles(narrow<int32_t>(std::max<int64_t>(1, ceil_div(count, tile)))),
        bins(narrow<int32_t>(num_bins)),
        alignment(narrow<int32_t>(align)) {
    CISTRON_CHECK(bins <= kMaxBins, "[sort] {} bins, at most {} are possible", bins, kMaxBins);
  }
};

/// `key(i)` is in [0, bins), or negative: left out. counts [tiles, bins].
template <class Key>
__global__ void __launch_bounds__(kSortThreads) count_kernel(SortShape shape, Key key, int32_t* counts) {
  __shared__ int32_t found[kMaxBins];
  const int tid = static_cast<int>(threadIdx.x), tile = static_cast<int>(blockIdx.x);
  for (int b = tid; b < shape.bins; b += kSortThreads) found[b] = 0;
  __syncthreads();
  const int begin = tile * shape.tile, end = min(shape.items, begin + shape.tile);
  for (int i = begin + tid; i < end; i += kSortThreads)
    if (const int bin = key(i); bin >= 0) atomicAdd(&found[bin], 1);  // of integers: any order gives the same
  __syncthreads();
  for (int b = tid; b < shape.bins; b += kSortThreads) counts[tile * shape.bins + b] = found[b];
}

/// Where bins lie.
struct SortedBins {
  int32_t total[kMaxBins];
  int32_t start[kMaxBins + 1];
  int32_t next[kMaxBins];                 // of this block's tile: where its next item goes
  alignas(16) int32_t carry[kSortWarps];  // read four at a time
};

/// All threads of a block of `kSortThreads`, each with at most one bin.
__device__ __forceinline__ void place_bins(const SortShape& shape, const int32_t* counts, SortedBins& bins) {
  const int tid = static_cast<int>(threadIdx.x), tile = static_cast<int>(blockIdx.x);
  if (tid < shape.bins) bins.total[tid] = bins.next[tid] = 0;
  __syncthreads();
  const int entries = shape.tiles * shape.bins;
  for (int i = tid; i < entries; i += kSortThreads) {
    const int32_t count = counts[i];
    if (count == 0) continue;
    const int t = i / shape.bins, b = i - t * shape.bins;
    atomicAdd(&bins.total[b], count);
    if (t < tile) atomicAdd(&bins.next[b], count);
  }
  __syncthreads();
  const int mine = tid < shape.bins ? bins.total[tid] : 0;
  const int padded = (mine + shape.alignment - 1) / shape.alignment * shape.alignment;
  int sum = padded;  // inclusive
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const int below = __shfl_up_sync(~0U, sum, offset);
    if (lane_index() >= offset) sum += below;
  }
  if (lane_index() == kWarp - 1) bins.carry[tid / kWarp] = sum;
  __syncthreads();
  for (int w = 0; w < tid / kWarp; ++w) sum += bins.carry[w];
  if (tid < shape.bins) {
    bins.start[tid] = sum - padded;
    bins.next[tid] += sum - padded;
    if (tid == shape.bins - 1) bins.start[shape.bins] = sum;
  }
  __syncthreads();
}

/// emit(i, place) for each item of this block's tile, place -1 for those left out. In turns of `kSortThreads` items: a warp finds
/// the items of equal key among its own by a match, and what the warps before it have from a table.
template <class Key, class Emit>
__device__ __forceinline__ void place_items(const SortShape& shape, const Key& key, SortedBins& bins, const Emit& emit) {
  __shared__ uint16_t found[kSortWarps][kMaxBins];
  const int tid = static_cast<int>(threadIdx.x), warp = tid / kWarp;
  const int begin = static_cast<int>(blockIdx.x) * shape.tile, end = min(shape.items, begin + shape.tile);
  int next = tid < shape.bins ? bins.next[tid] : 0;
  for (int turn = begin; turn < end; turn += kSortThreads) {
    const int item = turn + tid;
    const int bin = item < end ? key(item) : -1;
    for (int b = lane_index(); b < shape.bins; b += kWarp) found[warp][b] = 0;
    __syncwarp();
    const uint32_t peers = __match_any_sync(~0U, bin);
    const int rank = __popc(peers & ((1U << lane_index()) - 1));
    if (bin >= 0 && rank == 0) found[warp][bin] = static_cast<uint16_t>(__popc(peers));
    __syncthreads();
    if (tid < shape.bins) {
      bins.next[tid] = next;
      int before = 0;
      for (auto& line : found) {
        const int count = line[tid];
        line[tid] = static_cast<uint16_t>(before);
        before += count;
      }
      next += before;
    }
    __syncthreads();
    if (item < end) emit(item, bin < 0 ? -1 : bins.next[bin] + found[warp][bin] + rank);
    __syncthreads();
  }
}

template <class Key>
void count_bins(const Context& ctx, const SortShape& shape, const Key& key, int32_t* counts) {
  count_kernel<<<static_cast<uint32_t>(shape.tiles), kSortThreads, 0, stream(ctx)>>>(shape, key, counts);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace cistron::cuda::device
