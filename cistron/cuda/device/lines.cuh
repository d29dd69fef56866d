#pragma once
// How blocks are laid over rows that are reduced: (threads of a row, rows).
#include "cistron/core/checked.h"
#include "cistron/cuda/device/reduce.cuh"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda::device {

/// Chunks of a row that a thread keeps in registers; what is beyond is read again.
constexpr int kLineChunks = 4;
constexpr int kLineThreads = 256;  // of a block
constexpr int kLineWarps = kLineThreads / kWarp;

/// As few whole warps for a row as hold it at so many chunks a thread, at most a block.
inline dim3 line_block(int64_t row_chunks, int chunks_of_thread = kLineChunks) {
  uint32_t threads = kWarp;
  while (threads < kLineThreads && int64_t{threads} * chunks_of_thread < row_chunks) threads *= 2;
  return {threads, kLineThreads / threads};
}

template <class T>
void column_sums(const Context& ctx, const T* partial, int64_t lines, int64_t width, T* out, bool accumulate) {
  if (width == 0) return;
  column_sums_kernel<<<narrow<uint32_t>(ceil_div(width, kWarp)), dim3(kWarp, kWarp), 0, stream(ctx)>>>(
      partial, narrow<int>(lines), width, out, accumulate);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace cistron::cuda::device
