#pragma once
// One pass over arrays, chunk by chunk. A Map has `In load(int64_t chunk)` and `void store(int64_t chunk, const In&)`; all loads
// of a thread are on their way before its first store.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {

constexpr int kMapThreads = 256;
constexpr int kMapUnroll = 4;

template <class Map>
__global__ void __launch_bounds__(kMapThreads) map_kernel(Map map, int64_t chunks) {
  using In = decltype(map.load(0));
  const int64_t first = int64_t{blockIdx.x} * (kMapThreads * kMapUnroll) + threadIdx.x;
  In in[kMapUnroll];
#pragma unroll
  for (int i = 0; i < kMapUnroll; ++i)
    if (first + i * kMapThreads < chunks) in[i] = map.load(first + i * kMapThreads);
#pragma unroll
  for (int i = 0; i < kMapUnroll; ++i)
    if (first + i * kMapThreads < chunks) map.store(first + i * kMapThreads, in[i]);
}

template <class Map>
void launch_map(const Context& ctx, int64_t chunks, const Map& map) {
  if (chunks == 0) return;
  map_kernel<<<narrow<uint32_t>(ceil_div(chunks, kMapThreads * kMapUnroll)), kMapThreads, 0, stream(ctx)>>>(map, chunks);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace cistron::cuda
