#pragma once
// Sums in a fixed order, whatever the order in which threads run.
#include "cistron/cuda/device/ptx.cuh"

namespace cistron::cuda::device {

/// In every lane, the same bits.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
  return value;
}

/// Over the threads with one threadIdx.y (blockDim.x of them, whole warps), in each of them. Every thread of the block calls it;
/// `shared` holds a value for each warp of the block.
template <class T>
__device__ __forceinline__ T line_sum(T value, T* shared) {
  value = warp_sum(value);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps == 1) return value;
  T* line = shared + static_cast<int>(threadIdx.y) * warps;
  __syncthreads();  // the sum before
  if (lane_index() == 0) line[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = line[0];
  for (int i = 1; i < warps; ++i) value += line[i];
  return value;
}

/// out[c] = (or +=) the sum over `lines` of partial[., c], [lines, width]. Blocks of (32, 32), one for 32 columns.
template <class T>
__global__ void __launch_bounds__(1024) column_sums_kernel(const T* partial, int lines, int64_t width, T* out, bool accumulate) {
  __shared__ T shared[kWarp][kWarp + 1];
  const int64_t column = int64_t{blockIdx.x} * kWarp + threadIdx.x;
  T sum{};
  if (column < width) {
#pragma unroll 8
    for (int line = static_cast<int>(threadIdx.y); line < lines; line += kWarp) sum += partial[line * width + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = warp_sum(shared[threadIdx.x][threadIdx.y]);  // turned: a warp has one column
  const int64_t mine = int64_t{blockIdx.x} * kWarp + threadIdx.y;
  if (threadIdx.x == 0 && mine < width) out[mine] = accumulate ? out[mine] + sum : sum;
}

}  // namespace cistron::cuda::device
