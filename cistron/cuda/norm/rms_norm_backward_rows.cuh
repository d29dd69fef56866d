#pragma once
// The norm's backward for rows of at most four chunks a thread. Each thread copies its chunks of the rows to come into a ring in
// shared memory, so that the memory works on while a row's sum is waited for; nobody else reads them, so there is no barrier for
// them. w and this thread's part of dw stay in registers.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/lines.cuh"
#include "cistron/cuda/device/ptx.cuh"

namespace cistron::cuda {

template <class T>
struct BackwardRows {
  const T *dy, *x;
  const float *w, *rstd;
  T* dx;
  float* partial;  // [groups, H]
  int32_t rows;
  int32_t row_chunks;
  bool accumulate_dx;
};

/// 16 bytes, past the first-level cache.
__device__ __forceinline__ void copy_ahead(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(device::shared_address(shared)), "l"(global) : "memory");
}
__device__ __forceinline__ void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until of this thread's groups of copies at most so many are on their way.
template <int kLeft>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// A block's ring: dy, x and, where dx is added to, what it held, of 2 or 3 rows of each group: 6 x 4 chunks of 256 threads. Two
/// blocks find room on Hopper.
constexpr int kRingArrays = 6;
constexpr int kRingBytes = kRingArrays * device::kLineChunks * device::kLineThreads * device::kChunkBytes;

template <class T, int kWidth, bool kAdds>
__global__ void __launch_bounds__(device::kLineThreads, 2) ring_kernel(const __grid_constant__ BackwardRows<T> p) {
  using device::kLineChunks;
  using In = device::Chunk<T, kWidth>;
  constexpr int kArrays = kAdds ? 3 : 2, kRows = kRingArrays / kArrays;
  extern __shared__ uint4 ring_memory[];
  __shared__ float shared[device::kLineWarps];
  In* ring = reinterpret_cast<In*>(ring_memory) + threadIdx.y * blockDim.x + threadIdx.x;  // a chunk every kLineThreads
  const auto slot = [&](int turn, int array, int i) -> In& {
    return ring[((turn % kRows * kArrays + array) * kLineChunks + i) * device::kLineThreads];
  };
  const int group = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y), groups = static_cast<int>(gridDim.x * blockDim.y);
  const int step = static_cast<int>(blockDim.x), lane = static_cast<int>(threadIdx.x), n = p.row_chunks;
  const auto copy_row = [&](int turn) {
    const int64_t row = group + int64_t{turn} * groups;
#pragma unroll
    for (int i = 0; i < kLineChunks; ++i) {
      if (row >= p.rows || lane + i * step >= n) continue;
      const int64_t at = row * n + lane + i * step;
      copy_ahead(&slot(turn, 0, i), reinterpret_cast<const In*>(p.dy) + at);
      copy_ahead(&slot(turn, 1, i), reinterpret_cast<const In*>(p.x) + at);
      if constexpr (kAdds) copy_ahead(&slot(turn, 2, i), reinterpret_cast<const In*>(p.dx) + at);
    }
    end_of_copies();
  };
  for (int turn = 0; turn < kRows; ++turn) copy_row(turn);

  device::Floats<kWidth> w[kLineChunks] = {}, dw[kLineChunks] = {};
#pragma unroll
  for (int i = 0; i < kLineChunks; ++i)
    if (lane + i * step < n) w[i] = device::load_chunk<kWidth>(p.w, lane + i * step);
  float next_rstd = group < p.rows ? p.rstd[group] : 0.0F;
  // All groups take as many turns, since they meet at barriers; a row that isn't there is empty.
  for (int turn = 0; int64_t{turn} * groups < p.rows; ++turn) {
    const int64_t row = group + int64_t{turn} * groups;
    const int end = row < p.rows ? n : 0;
    const float rstd = next_rstd;
    if (row + groups < p.rows) next_rstd = p.rstd[row + groups];
    wait_for_copies<kRows - 1>();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kLineChunks; ++i) {
      if (lane + i * step >= end) continue;
      const In dy = slot(turn, 0, i), x = slot(turn, 1, i);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum += device::as_float(dy.at[e]) * w[i].at[e] * device::as_float(x.at[e]);
    }
    const float scale = rstd * rstd * (device::line_sum(sum, shared) / static_cast<float>(n * kWidth));
#pragma unroll
    for (int i = 0; i < kLineChunks; ++i) {
      if (lane + i * step >= end) continue;
      const In dy = slot(turn, 0, i), x = slot(turn, 1, i);
      device::Floats<kWidth> dx;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const float d = device::as_float(dy.at[e]), v = device::as_float(x.at[e]);
        dx.at[e] = rstd * (d * w[i].at[e] - v * scale);
        if constexpr (kAdds) dx.at[e] += device::as_float(slot(turn, 2, i).at[e]);
        dw[i].at[e] += d * v * rstd;
      }
      device::store_chunk<kWidth>(p.dx, row * n + lane + i * step, dx);
    }
    copy_row(turn + kRows);
  }

  // The block's groups in order; the ring is done with.
  wait_for_copies<0>();
  __syncthreads();
  auto* sums = reinterpret_cast<float*>(ring_memory) + static_cast<int>(threadIdx.y) * n * kWidth;
#pragma unroll
  for (int i = 0; i < kLineChunks; ++i)
    if (lane + i * step < n) device::store_chunk<kWidth>(sums, lane + i * step, dw[i]);
  __syncthreads();
  const auto* all = reinterpret_cast<const float*>(ring_memory);
  for (int c = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); c < n * kWidth; c += device::kLineThreads) {
    float total = all[c];
    for (int y = 1; y < static_cast<int>(blockDim.y); ++y) total += all[y * n * kWidth + c];
    p.partial[int64_t{blockIdx.x} * n * kWidth + c] = total;
  }
}

}  // namespace cistron::cuda
