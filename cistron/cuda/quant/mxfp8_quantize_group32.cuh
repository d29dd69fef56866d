#pragma once
// Weights in blocks of 96 rows x 32 of the contraction, which share a scale; either copy, one launch each. A block makes 96 x 64
// by way of shared memory. Runs once an optimizer step.
#include <cstdint>

#include "cistron/cuda/quant/mxfp8_tile.cuh"

namespace cistron::cuda {

constexpr int kBlockRows = 96;
constexpr int kBlockDepth = 64;
constexpr int kBlockThreads = 256;

/// One copy, seen as its operand: rows x depth for each expert.
struct QuantBlocks {
  const void* x = nullptr;  // [E, rows, depth], or [E, depth, rows] where turned
  uint8_t* elements = nullptr;
  uint8_t* scales = nullptr;  // [E, gridDim.y, depth / 32]
  int64_t rows = 0;
  int64_t depth = 0;
  int64_t section_rows = 0;
  int section_blocks = 0;
  bool turned = false;
};

template <class T>
__global__ void __launch_bounds__(kBlockThreads) mxfp8_quantize_blocks_kernel(const QuantBlocks args) {
  __shared__ float tile[kBlockRows][kBlockDepth + 1];
  __shared__ uint32_t partial[kBlockThreads / 32];
  const int me = static_cast<int>(threadIdx.x);
  const int64_t expert = blockIdx.z;
  const int64_t in_section = static_cast<int64_t>(blockIdx.y) % args.section_blocks * kBlockRows;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) / args.section_blocks * args.section_rows + in_section;
  const int64_t k0 = static_cast<int64_t>(blockIdx.x) * kBlockDepth;
  const int rows = static_cast<int>(min(static_cast<int64_t>(kBlockRows), args.section_rows - in_section));
  const int depth = static_cast<int>(min(static_cast<int64_t>(kBlockDepth), args.depth - k0));

  // Octets run along the lines of x: along the contraction, or across it where turned.
  const T* x = static_cast<const T*>(args.x) + expert * args.rows * args.depth;
  const int octets = (args.turned ? rows : depth) / 8;
  for (int i = me; i < (args.turned ? depth : rows) * octets; i += kBlockThreads) {
    const int line = i / octets;
    const int at = i % octets * 8;
    Octet<T> values;
    values.load(args.turned ? x + (k0 + line) * args.rows + row0 + at : x + (row0 + line) * args.depth + k0 + at);
#pragma unroll
    for (int j = 0; j < 8; ++j) (args.turned ? tile[at + j][line] : tile[line][at + j]) = values[j];
  }
  __syncthreads();

  // Warps 0-3 take the first group, 4-7 the second.
  const int group = me / 128;
  uint32_t amax = 0;
  if (group * 32 < depth)
    for (int r = me % 128 / 32; r < rows; r += 4) amax = max(amax, __float_as_uint(tile[r][group * 32 + me % 32]) & 0x7fffffffU);
  amax = __reduce_max_sync(0xffffffffU, amax);
  if (me % 32 == 0) partial[me / 32] = amax;
  __syncthreads();

  const auto scale_of = [&](int g) {
    return ops::e8m0_from_amax(max(max(partial[4 * g], partial[4 * g + 1]), max(partial[4 * g + 2], partial[4 * g + 3])));
  };
  if (me % 128 == 0 && group * 32 < depth)
    args.scales[(expert * gridDim.y + blockIdx.y) * (args.depth / 32) + k0 / 32 + group] = scale_of(group);
  for (int i = me; i < rows * (depth / 4); i += kBlockThreads) {
    const int r = i / (depth / 4);
    const int k = i % (depth / 4) * 4;
    const float s = ops::e8m0_inverse(scale_of(k / 32));
    const float* v = &tile[r][k];
    *reinterpret_cast<uint32_t*>(args.elements + (expert * args.rows + row0 + r) * args.depth + k0 + k) =
        e4m3_four(v[0] * s, v[1] * s, v[2] * s, v[3] * s);
  }
}

}  // namespace cistron::cuda
