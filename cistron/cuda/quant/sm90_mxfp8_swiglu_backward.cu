// SwiGLU's backward and the quantisers of what it gives, in one pass: 6 bytes read and 5 written for an element of F, where
// scaled_swiglu_backward, scaled_swiglu_forward and two quantisers move 27. A block makes a tile of 128 rows by 128 columns of F,
// a whole number of scale groups both ways (`mxfp8_tile.cuh`). What it reads and what it makes of it lies in shared memory, where
// each thread has its own 8 x 8 block of each tensor; dweight's parts are sums in a fixed order.
#include "cistron/core/checked.h"
#include "cistron/cuda/device/mma.cuh"
#include "cistron/cuda/moe/swiglu.cuh"
#include "cistron/cuda/quant/mxfp8_quantize.cuh"
#include "cistron/cuda/quant/sm90_mxfp8_swiglu_backward.h"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda::sm90 {
namespace {

using Value = __nv_bfloat16;

struct SwigluBackwardArgs {
  const Value* d;        // [rows, width]
  const Value* gate_up;  // [P, 2 width]
  const int32_t* source_row;
  const float* weight;
  const int32_t *starts, *counts;  // rows from starts[experts] on are left alone
  int experts;
  int64_t rows, width;
  QuantCopy dgate_up, dgate_up_turned, act_turned;
  float* partials;        // [tiles of columns, rows]
  float* dbias_partials;  // as `sum_bias_tiles` has them; null: none wanted
};

__device__ __forceinline__ uint32_t packed(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

/// 16 bytes of each of a thread's eight rows; and a transposed tile in their place, when they have been read.
union Values {
  uint4 rows[8][kQuantThreads];
  TurnedTile turned;
};

struct Shared {
  Values values[3];               // gate, up and d; then dgate, dup and act
  uint4 amax[3][8][16];           // of columns, as pairs of bf16, by warps of 16 rows
  uint8_t scales[2][kQuantTile];  // of dgate's and dup's rows
};

/// The larger magnitudes of pairs of bf16.
__device__ __forceinline__ uint4 larger(const uint4& a, const uint4& b) {
  return {__vmaxu2(a.x, b.x), __vmaxu2(a.y, b.y), __vmaxu2(a.z, b.z), __vmaxu2(a.w, b.w)};
}
__device__ __forceinline__ uint4 magnitudes(const uint4& a) {
  constexpr uint32_t kMask = 0x7fff7fffU;
  return {a.x & kMask, a.y & kMask, a.z & kMask, a.w & kMask};
}
__device__ __forceinline__ uint32_t largest(const uint4& a) { return __vmaxu2(__vmaxu2(a.x, a.y), __vmaxu2(a.z, a.w)); }

/// The place in a packed tensor of a row in use; a tile's other rows follow it, since a tile never meets two experts. By a warp.
__device__ __forceinline__ int packed_place(const SwigluBackwardArgs& args, int row) {
  int before = 0;
  for (int e = device::lane_index(); e < args.experts; e += device::kWarp)
    before += min(max(row - __ldg(args.starts + e), 0), __ldg(args.counts + e));
  return __reduce_add_sync(~0U, before);
}

/// Starts the copies; pad rows become zeros, which give zeros, and are not read: their places may lie past the end. `packed`: the
/// place of `row`.
__device__ __forceinline__ void load(const SwigluBackwardArgs& args, Shared& shared, int64_t row, int64_t packed,
                                     int64_t column) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const bool inside = __ldg(args.source_row + row + i) >= 0;
    const Value* gate = args.gate_up + (packed + i) * 2 * args.width + column;
    const auto copy = [&](int tensor, const Value* from) {
      device::copy_16(device::shared_address(&shared.values[tensor].rows[i][threadIdx.x]), from, inside);
    };
    copy(0, gate);
    copy(1, gate + args.width);
    copy(2, args.d + (row + i) * args.width + column);
  }
  device::commit();
}

/// Eight neighbouring elements: their gradients and the activation, in bf16, in the places of gate, up and d; gives their part of
/// dweight.
__device__ __forceinline__ float differentiate(Octet<Value> (&x)[3], float weight) {
  float dweight = 0;
  uint32_t pairs[3][4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const auto first = swiglu_gradients<Value>(x[2][2 * p], x[0][2 * p], x[1][2 * p], weight);
    const auto second = swiglu_gradients<Value>(x[2][2 * p + 1], x[0][2 * p + 1], x[1][2 * p + 1], weight);
    dweight += first.dweight;
    dweight += second.dweight;
    pairs[0][p] = packed(first.dgate, second.dgate);
    pairs[1][p] = packed(first.dup, second.dup);
    pairs[2][p] = packed(first.act, second.act);
  }
#pragma unroll
  for (int t = 0; t < 3; ++t) x[t].words = {pairs[t][0], pairs[t][1], pairs[t][2], pairs[t][3]};
  return dweight;
}

/// One row: everything but the transposed copies, of which only the columns' amax. 16 lanes share the row.
__device__ __forceinline__ void make_row(const SwigluBackwardArgs& args, Shared& shared, const QuantThread& me, int i,
                                         int64_t row, int64_t column, float* partials, uint4 (&columns)[3]) {
  Octet<Value> x[3];
#pragma unroll
  for (int t = 0; t < 3; ++t) x[t].words = shared.values[t].rows[i][threadIdx.x];
  float dweight = differentiate(x, __ldg(args.weight + row));
  uint4 size[3];
#pragma unroll
  for (int t = 0; t < 3; ++t) {
    shared.values[t].rows[i][threadIdx.x] = x[t].words;
    size[t] = magnitudes(x[t].words);
    columns[t] = larger(columns[t], size[t]);
  }
  const uint32_t gate = largest(size[0]), up = largest(size[1]);  // two columns each; both amax in one register below
  uint32_t amax = __vmaxu2(__byte_perm(gate, up, 0x5410), __byte_perm(gate, up, 0x7632));
#pragma unroll
  for (int step = 8; step > 0; step /= 2) {
    amax = __vmaxu2(amax, __shfl_xor_sync(~0U, amax, step));
    dweight += __shfl_xor_sync(~0U, dweight, step);
  }
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const uint8_t scale = ops::e8m0_from_amax(t == 0 ? amax << 16 : amax & 0xffff0000U);
    const auto inverse = Octet<Value>::repeated(ops::e8m0_inverse(scale));
    *reinterpret_cast<uint2*>(args.dgate_up.elements + row * args.dgate_up.pitch + t * args.width + column) =
        encoded(x[t].scaled(inverse));
    if (me.column == 0) shared.scales[t][me.row + i] = scale;
  }
  if (me.column == 0) partials[row] = dweight;
}

/// By a thread for each pair of columns of a tensor: their scales, to memory, and what values are multiplied by, into the first
/// warp's places.
__device__ __forceinline__ void column_scales(const SwigluBackwardArgs& args, Shared& shared, int64_t row0, int64_t column0) {
  const int t = static_cast<int>(threadIdx.x) / 64, pair = static_cast<int>(threadIdx.x) % 64;
  if (t == 3) return;
  uint32_t amax = 0;
#pragma unroll
  for (int w = 0; w < 8; ++w) amax = __vmaxu2(amax, reinterpret_cast<const uint32_t*>(shared.amax[t][w])[pair]);
  const uint8_t first = ops::e8m0_from_amax(amax << 16), second = ops::e8m0_from_amax(amax & 0xffff0000U);
  reinterpret_cast<uint32_t*>(shared.amax[t][0])[pair] = Octet<Value>::pair(ops::e8m0_inverse(first), ops::e8m0_inverse(second));
  const QuantCopy& out = t < 2 ? args.dgate_up_turned : args.act_turned;
  uint8_t* scales = out.scales + row0 / kQuantTile * out.scale_pitch + (t == 1 ? args.width : 0) + column0;
  reinterpret_cast<uint16_t*>(scales)[pair] = static_cast<uint16_t>(first | second << 8);
}

/// The sums of the columns of dgate and dup over the tile's rows, from their values in shared memory, into the line that
/// `BiasTiles` numbers (its tiles have as many rows). By warps, of which the first four have a pair of columns a thread.
__device__ __forceinline__ void sum_columns(const SwigluBackwardArgs& args, const Shared& shared, int row0, int64_t column0) {
  int experts = 0;  // that end before
  for (int e = device::lane_index(); e < args.experts; e += device::kWarp) experts += __ldg(args.starts + e + 1) <= row0;
  experts = __reduce_add_sync(~0U, experts);
  static_assert(kQuantTile == ops::kBiasTileRows);  // `sum_bias_tiles` counts lines by those
  const int t = static_cast<int>(threadIdx.x) / 64, pair = static_cast<int>(threadIdx.x) % 64;
  if (t > 1) return;
  float low = 0, high = 0;
#pragma unroll 1
  for (int rows = 0; rows < kQuantTile / 8; ++rows)
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = reinterpret_cast<const uint32_t*>(&shared.values[t].rows[i][16 * rows])[pair];
      low += __uint_as_float(word << 16);
      high += __uint_as_float(word & 0xffff0000U);
    }
  float* out = args.dbias_partials + (row0 / kQuantTile + experts) * 2 * args.width + t * args.width + column0 + 2 * pair;
  out[0] = low;
  out[1] = high;
}

/// The transposed copy of tensor `t`.
__device__ __forceinline__ void turn(Shared& shared, int t, const QuantThread& me, const QuantCopy& out, int64_t row0,
                                     int64_t column0) {
  Octet<Value> x[8];
  const Octet<Value> inverse = {shared.amax[t][0][me.column / 8]};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i].words = shared.values[t].rows[i][threadIdx.x];
    x[i] = x[i].scaled(inverse);
  }
  __syncthreads();
  shared.values[t].turned.put(x, me);
  __syncthreads();
  shared.values[t].turned.store(out.elements + column0 * out.pitch + row0, out.pitch, kQuantTile);
}

__global__ void __launch_bounds__(kQuantThreads, 2) swiglu_backward_kernel(const SwigluBackwardArgs args) {
  extern __shared__ __align__(16) uint8_t memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const QuantThread me;
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kQuantTile, column0 = static_cast<int64_t>(blockIdx.x) * kQuantTile;
  if (row0 >= __ldg(args.starts + args.experts)) return;
  const int64_t row = row0 + me.row, column = column0 + me.column;
  load(args, shared, row, packed_place(args, static_cast<int>(row0)) + me.row, column);
  device::wait<0>();  // and no barrier: a thread reads what it brought itself
  uint4 columns[3] = {};
#pragma unroll 2
  for (int i = 0; i < 8; ++i) make_row(args, shared, me, i, row + i, column, args.partials + blockIdx.x * args.rows, columns);
#pragma unroll
  for (int t = 0; t < 3; ++t) {
    const uint4 other = {__shfl_xor_sync(~0U, columns[t].x, 16), __shfl_xor_sync(~0U, columns[t].y, 16),
                         __shfl_xor_sync(~0U, columns[t].z, 16), __shfl_xor_sync(~0U, columns[t].w, 16)};
    if (me.half == 0) shared.amax[t][me.warp][me.lane] = larger(columns[t], other);
  }
  __syncthreads();
  if (me.warp < 2) {  // a word for each four rows of a tensor
    const uint32_t word = reinterpret_cast<const uint32_t*>(shared.scales[me.warp])[me.lane];
    uint8_t* scales = args.dgate_up.scales + (me.warp * args.width + column0) / kQuantTile * args.dgate_up.scale_pitch + row0;
    reinterpret_cast<uint32_t*>(scales)[me.lane] = word;
  }
  if (args.dbias_partials != nullptr) sum_columns(args, shared, static_cast<int>(row0), column0);
  column_scales(args, shared, row0, column0);
  __syncthreads();
  turn(shared, 0, me, args.dgate_up_turned, row0, column0);
  turn(shared, 1, me, args.dgate_up_turned, row0, args.width + column0);
  turn(shared, 2, me, args.act_turned, row0, column0);
}

}  // namespace

void mxfp8_swiglu_backward(Context& ctx, const ops::Mxfp8GroupedSwigluBackward& args) {
  const SwigluBackwardArgs kernel{.d = static_cast<const Value*>(args.d.raw()),
                                  .gate_up = static_cast<const Value*>(args.gate_up.raw()),
                                  .source_row = args.groups.source_row.data<int32_t>(),
                                  .weight = args.groups.weight.data<float>(),
                                  .starts = args.groups.starts.data<int32_t>(),
                                  .counts = args.groups.counts.data<int32_t>(),
                                  .experts = narrow<int>(args.groups.num_experts()),
                                  .rows = args.d.dim(0),
                                  .width = args.d.dim(1),
                                  .dgate_up = quant_copy(args.dgate_up.rows),
                                  .dgate_up_turned = quant_copy(args.dgate_up.columns),
                                  .act_turned = quant_copy(args.act),
                                  .partials = args.partials.data<float>(),
                                  .dbias_partials = args.dbias_partials.defined() ? args.dbias_partials.data<float>() : nullptr};
  const dim3 grid(narrow<uint32_t>(kernel.width / kQuantTile), narrow<uint32_t>(kernel.rows / kQuantTile));
  CISTRON_CHECK(grid.y < 65536, "[mxfp8_grouped_swiglu_backward] {} rows are more than one launch takes", kernel.rows);
  if (grid.x * grid.y == 0) return;
  constexpr int kBytes = sizeof(Shared);
  CISTRON_CUDA_CHECK(cudaFuncSetAttribute(swiglu_backward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  swiglu_backward_kernel<<<grid, kQuantThreads, kBytes, stream(ctx)>>>(kernel);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace cistron::cuda::sm90
