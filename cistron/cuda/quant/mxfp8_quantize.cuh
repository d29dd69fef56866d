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

/// The thread's block; zeros where no row is. Without pad rows all loads are on their way before the first is used.
template <class T>
__device__ __forceinline__ void load_block(const QuantArgs& args, const QuantThread& me, int64_t row0, int64_t column0,
                                           Octet<T> (&x)[8]) {
  const auto* source = reinterpret_cast<const uint8_t*>(static_cast<const T*>(args.x) + column0 + me.column);
  const auto pitch = static_cast<int32_t>(args.width) * static_cast<int32_t>(sizeof(T));
  const auto load = [&](int i, int32_t row) { x[i].load(reinterpret_cast<const T*>(source + int64_t{row} * pitch)); };
  const int32_t row = static_cast<int32_t>(row0) + me.row;
  const bool inside = static_cast<int32_t>(column0) + me.column < static_cast<int32_t>(args.width);
  const int32_t left = inside ? static_cast<int32_t>(args.rows) - row : 0;
  const bool gathers = args.source_row != nullptr;
  int4 low = {row, row + 1, row + 2, row + 3}, high = {row + 4, row + 5, row + 6, row + 7};
  if (gathers && left >= 8) {
    low = __ldg(reinterpret_cast<const int4*>(args.source_row + row));
    high = __ldg(reinterpret_cast<const int4*>(args.source_row + row) + 1);
  }
  const int32_t from[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if (left >= 8 && min(min(min(low.x, low.y), min(low.z, low.w)), min(min(high.x, high.y), min(high.z, high.w))) >= 0) {
#pragma unroll
    for (int i = 0; i < 8; ++i) load(i, from[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = {};
      const int32_t at = i >= left ? -1 : gathers && left < 8 ? __ldg(args.source_row + row + i) : from[i];
      if (at >= 0) load(i, at);
    }
  }
}

/// The row-wise copy of the thread's block, whose rows' amax is spread over kGroup / 8 lanes. Each of these makes the scales of
/// one row or two.
template <int kGroup, class T>
__device__ __forceinline__ void store_rows(const QuantArgs& args, const QuantThread& me, int64_t row0, int64_t column0,
                                           Magnitudes<T> amax, const Octet<T> (&x)[8]) {
  constexpr int kTeam = kGroup == 128 ? 8 : 4;
  const QuantCopy& out = args.row_wise;
#pragma unroll
  for (int step = kGroup / 16; step > 0; step /= 2) amax.raise_across(step);
  const bool inside = column0 + me.column < args.width;
  uint8_t* scales = out.scales + (column0 + me.column) / kGroup * out.scale_pitch + row0 + me.row;
  uint8_t* elements = out.elements + (row0 + me.row) * out.pitch + column0 + me.column;
  const int rows = inside ? static_cast<int>(args.rows) - static_cast<int>(row0) - me.row : 0;
#pragma unroll
  for (int first = 0; first < 8; first += kTeam) {
    const int mine = first + me.lane % kTeam;
    const uint8_t scale = ops::e8m0_from_amax(amax[mine]);
    const float inverse = ops::e8m0_inverse(scale);
    if (inside && me.column % kGroup < kTeam * 8) scales[mine] = scale;
#pragma unroll
    for (int i = 0; i < kTeam; ++i) {
      const float s = __shfl_sync(0xffffffffU, inverse, i, kTeam);
      const uint2 bytes = encoded(x[first + i].scaled(Octet<T>::repeated(s)));
      if (first + i < rows)
        *reinterpret_cast<uint2*>(elements + uint64_t{static_cast<uint32_t>(first + i)} * static_cast<uint32_t>(out.pitch)) =
            bytes;
    }
  }
}

/// The columns' amax, of the rows of each warp, and what values are multiplied by.
template <class T, int kGroup>
struct ColumnScales {
  static constexpr int kWarps = kGroup / 16, kGroups = kQuantTile / kGroup;
  typename Magnitudes<T>::Bits amax[8][kQuantTile];
  T inverse[kGroups][kQuantTile];

  __device__ __forceinline__ void put(Magnitudes<T> columns, const QuantThread& me) {
    columns.raise_across(16);
    if (me.half != 0) return;
    auto* words = reinterpret_cast<uint4*>(&amax[me.warp][me.column]);
#pragma unroll
    for (int w = 0; w < columns.kWords; w += 4)
      words[w / 4] = {columns.words[w], columns.words[w + 1], columns.words[w + 2], columns.words[w + 3]};
  }
  /// After a barrier: by a thread for each column and group of rows.
  __device__ __forceinline__ void make(const QuantCopy& out, int64_t row0, int64_t column0) {
#pragma unroll
    for (int first = 0; first < kGroups * kQuantTile; first += kQuantThreads) {
      const int i = first + static_cast<int>(threadIdx.x), group = i / kQuantTile, column = i % kQuantTile;
      if (group == kGroups) return;
      uint32_t largest = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) largest = max(largest, static_cast<uint32_t>(amax[group * kWarps + w][column]));
      const uint8_t scale = ops::e8m0_from_amax(Magnitudes<T>::widened(largest));
      out.scales[(row0 / kGroup + group) * out.scale_pitch + column0 + column] = scale;
      inverse[group][column] = static_cast<T>(ops::e8m0_inverse(scale));
    }
  }
  /// After another: the thread's columns'.
  __device__ __forceinline__ const Octet<T>& get(const QuantThread& me) const {
    return reinterpret_cast<const Octet<T>&>(inverse[me.warp / kWarps][me.column]);
  }
};

/// Activations: a scale for each row and group, and for each column and group of rows.
template <class T, int kGroup, bool kNorm = false>
__global__ void __launch_bounds__(kQuantThreads) mxfp8_quantize_kernel(const QuantArgs args) {
  __shared__ alignas(16) TurnedTile tile;
  __shared__ alignas(16) ColumnScales<T, kGroup> columns;
  const QuantThread me;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kQuantTile;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x + blockIdx.z) * kQuantTile;
  if (args.end != nullptr && row0 >= __ldg(args.end)) return;

  Octet<T> x[8];
  load_block(args, me, row0, column0, x);
  if constexpr (kNorm)
    norm_block(args.rstd + row0 + me.row, args.norm_weight + column0 + me.column, args.rows - row0 - me.row, x);
  const BlockAmax<T> amax(x);
  if (args.turned.elements != nullptr) columns.put(amax.columns, me);
  if (args.row_wise.elements != nullptr) store_rows<kGroup>(args, me, row0, column0, amax.rows, x);
  if (args.turned.elements == nullptr) return;
  __syncthreads();
  columns.make(args.turned, row0, column0);
  __syncthreads();
  const Octet<T> inverse = columns.get(me);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = x[i].scaled(inverse);
  tile.put(x, me);
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
  uint32_t largest = Magnitudes<T>::widened(amax.columns.largest());
  largest = __reduce_max_sync(0xffffffffU, largest);
  if (me.lane == 0) partial[me.warp] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < 8; ++w) largest = max(largest, partial[w]);
  const uint8_t scale = ops::e8m0_from_amax(largest);
  const auto inverse = Octet<T>::repeated(ops::e8m0_inverse(scale));
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = x[i].scaled(inverse);

  if (args.row_wise.elements != nullptr) {
    if (threadIdx.x == 0)
      args.row_wise.scales[(expert * gridDim.y + blockIdx.y) * args.row_wise.scale_pitch + blockIdx.x] = scale;
    uint8_t* elements = args.row_wise.elements + (expert * args.rows + row0 + me.row) * args.row_wise.pitch + column0 + me.column;
#pragma unroll
    for (int i = 0; i < 8; ++i) *reinterpret_cast<uint2*>(elements + i * args.row_wise.pitch) = encoded(x[i]);
  }
  if (args.turned.elements == nullptr) return;
  if (threadIdx.x == 0) args.turned.scales[(expert * gridDim.x + blockIdx.x) * args.turned.scale_pitch + blockIdx.y] = scale;
  tile.put(x, me);
  __syncthreads();
  tile.store(args.turned.elements + (expert * args.width + column0) * args.turned.pitch + row0, args.turned.pitch, kQuantTile);
}

}  // namespace cistron::cuda
