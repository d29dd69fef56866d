#pragma once
// Kernels of `ops/mxfp8.h`. Each value is read once and both copies are written: 4 bytes moved a bf16 value.
// One block makes one 128 x 128 tile, a whole number of scale groups both ways, so blocks share nothing; bit-equal with the CPU.
#include <cstdint>

#include "cistron/cuda/quant/mxfp8_norm.cuh"
#include "cistron/cuda/quant/mxfp8_tile.cuh"
#include "cistron/ops/mxfp8.h"

namespace cistron::cuda {

/// One copy of the output; null elements: not wanted.
struct QuantCopy {
  uint8_t* elements = nullptr;
  uint8_t* scales = nullptr;
  int64_t pitch = 0;        // of elements, in bytes
  int64_t scale_pitch = 0;  // from one group to the next (activations), from one row block to the next (weights)
};

inline QuantCopy quant_copy(const ops::MxOperand& operand) {
  if (!operand.defined()) return {};
  return {.elements = operand.elements.data<uint8_t>(),
          .scales = operand.scales.data<uint8_t>(),
          .pitch = operand.depth(),
          .scale_pitch = operand.is_weight() ? operand.num_groups() : operand.scales.dim(1)};
}

struct QuantArgs {
  const void* x = nullptr;  // [T, width]
  int64_t rows = 0;         // of the output
  int64_t width = 0;
  const int32_t* source_row = nullptr;
  const int32_t* end = nullptr;  // rows from *end on are left alone
  const float* rstd = nullptr;   // [rows], and [width] below: of the norm, where x is normed first
  const float* norm_weight = nullptr;
  QuantCopy row_wise;
  QuantCopy turned;
};

template <class T>
__device__ __forceinline__ void load_block(const QuantArgs& args, const QuantThread& me, int64_t row0, int64_t column0,
                                           Octet<T> (&x)[8]) {
  const T* source = static_cast<const T*>(args.x) + column0 + me.column;
  if (column0 + me.column >= args.width) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    int64_t row = row0 + me.row + i;
    if (row >= args.rows) continue;
    if (args.source_row != nullptr) row = __ldg(args.source_row + row);
    if (row >= 0) x[i].load(source + row * args.width);
  }
}

/// Scales of eight rows whose amax is spread over kGroup / 8 lanes; one lane of these stores them.
template <int kGroup>
__device__ __forceinline__ void row_scales(uint32_t (&amax)[8], const QuantThread& me, const QuantCopy& out, int64_t row0,
                                           int64_t column0, int64_t width, float (&inverse)[8]) {
  uint32_t bytes[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int step = kGroup / 16; step > 0; step /= 2) amax[i] = max(amax[i], __shfl_xor_sync(0xffffffffU, amax[i], step));
    const uint8_t scale = ops::e8m0_from_amax(amax[i]);
    inverse[i] = ops::e8m0_inverse(scale);
    bytes[i / 4] |= static_cast<uint32_t>(scale) << (i % 4 * 8);
  }
  if (me.column % kGroup == 0 && column0 + me.column < width)
    *reinterpret_cast<uint2*>(out.scales + (column0 + me.column) / kGroup * out.scale_pitch + row0 + me.row) = {bytes[0],
                                                                                                                bytes[1]};
}

/// The amax of each column over a warp's 16 rows; eight columns are two 16-byte words, 16 of them side by side, so that no bank
/// waits.
struct ColumnAmax {
  uint4 words[8][2][16];

  __device__ __forceinline__ void put(uint32_t (&column)[8], const QuantThread& me) {
#pragma unroll
    for (int j = 0; j < 8; ++j) column[j] = max(column[j], __shfl_xor_sync(0xffffffffU, column[j], 16));
    if (me.half != 0) return;
    words[me.warp][0][me.lane] = {column[0], column[1], column[2], column[3]};
    words[me.warp][1][me.lane] = {column[4], column[5], column[6], column[7]};
  }
  /// After a barrier: of the thread's eight columns over warps [first, first + count).
  template <int kCount>
  __device__ __forceinline__ void get(uint32_t (&column)[8], const QuantThread& me, int first) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) column[j] = 0;
#pragma unroll 4  // all eight at once take more than 64 registers
    for (int w = 0; w < kCount; ++w)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 four = words[first + w][i][me.column / 8];
        column[4 * i] = max(column[4 * i], four.x);
        column[4 * i + 1] = max(column[4 * i + 1], four.y);
        column[4 * i + 2] = max(column[4 * i + 2], four.z);
        column[4 * i + 3] = max(column[4 * i + 3], four.w);
      }
  }
};

/// Scales of the thread's eight columns.
template <int kGroup>
__device__ __forceinline__ void column_scales(const ColumnAmax& partial, const QuantThread& me, const QuantCopy& out,
                                              int64_t row0, int64_t column0, float (&inverse)[8]) {
  constexpr int kWarps = kGroup / 16;
  const int first = me.warp / kWarps * kWarps;
  uint32_t amax[8];
  partial.get<kWarps>(amax, me, first);
  uint32_t bytes[2] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint8_t scale = ops::e8m0_from_amax(amax[j]);
    inverse[j] = ops::e8m0_inverse(scale);
    bytes[j / 4] |= static_cast<uint32_t>(scale) << (j % 4 * 8);
  }
  if (me.warp == first && me.half == 0)
    *reinterpret_cast<uint2*>(out.scales + (row0 + me.row) / kGroup * out.scale_pitch + column0 + me.column) = {bytes[0],
                                                                                                                bytes[1]};
}

/// Activations: a scale for each row and group, and for each column and group of rows.
template <class T, int kGroup, bool kNorm = false>
__global__ void __launch_bounds__(kQuantThreads) mxfp8_quantize_kernel(const QuantArgs args) {
  __shared__ alignas(16) TurnedTile tile;
  __shared__ ColumnAmax partial;
  const QuantThread me;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kQuantTile;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kQuantTile;
  if (args.end != nullptr && row0 >= __ldg(args.end)) return;

  Octet<T> x[8];
  load_block(args, me, row0, column0, x);
  if constexpr (kNorm)
    norm_block(args.rstd + row0 + me.row, args.norm_weight + column0 + me.column, args.rows - row0 - me.row, x);
  BlockAmax<T> amax(x);
  if (args.turned.elements != nullptr) partial.put(amax.column, me);
  float inverse[8];
  if (args.row_wise.elements != nullptr) {
    const bool inside = column0 + me.column < args.width;
    row_scales<kGroup>(amax.row, me, args.row_wise, row0, column0, args.width, inverse);
    uint8_t* elements = args.row_wise.elements + (row0 + me.row) * args.row_wise.pitch + column0 + me.column;
    store_rows(x, inverse, elements, args.row_wise.pitch, inside ? args.rows - row0 - me.row : 0);
  }
  if (args.turned.elements == nullptr) return;
  __syncthreads();
  column_scales<kGroup>(partial, me, args.turned, row0, column0, inverse);
  tile.put(x, inverse, me);
  __syncthreads();
  tile.store(args.turned.elements + column0 * args.turned.pitch + row0, args.turned.pitch, args.width - column0);
}

/// Weights in 128 x 128 blocks: one scale a tile, in both copies. blockIdx.z is the expert.
template <class T>
__global__ void __launch_bounds__(kQuantThreads) mxfp8_quantize_weights_kernel(const QuantArgs args) {
  __shared__ alignas(16) TurnedTile tile;
  __shared__ uint32_t partial[8];
  const QuantThread me;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kQuantTile;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * kQuantTile;
  const int64_t expert = blockIdx.z;

  Octet<T> x[8];
  QuantArgs of_expert = args;
  of_expert.x = static_cast<const T*>(args.x) + expert * args.rows * args.width;
  load_block(of_expert, me, row0, column0, x);
  const BlockAmax<T> amax(x);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = max(largest, amax.row[i]);
  largest = __reduce_max_sync(0xffffffffU, largest);
  if (me.lane == 0) partial[me.warp] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < 8; ++w) largest = max(largest, partial[w]);
  const uint8_t scale = ops::e8m0_from_amax(largest);
  float inverse[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) inverse[i] = ops::e8m0_inverse(scale);

  if (args.row_wise.elements != nullptr) {
    if (threadIdx.x == 0)
      args.row_wise.scales[(expert * gridDim.y + blockIdx.y) * args.row_wise.scale_pitch + blockIdx.x] = scale;
    uint8_t* elements = args.row_wise.elements + (expert * args.rows + row0 + me.row) * args.row_wise.pitch + column0 + me.column;
    store_rows(x, inverse, elements, args.row_wise.pitch, 8);
  }
  if (args.turned.elements == nullptr) return;
  if (threadIdx.x == 0) args.turned.scales[(expert * gridDim.x + blockIdx.x) * args.turned.scale_pitch + blockIdx.y] = scale;
  tile.put(x, inverse, me);
  __syncthreads();
  tile.store(args.turned.elements + (expert * args.width + column0) * args.turned.pitch + row0, args.turned.pitch, kQuantTile);
}

}  // namespace cistron::cuda
