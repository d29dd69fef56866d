#pragma once
// Epilogue of the MXFP8 product before SwiGLU (`ops/mxfp8_grouped_swiglu.h`): gate and up in bf16, and the activation, rounded to
// bf16 as it would be in memory, as the next product's operand. A tile has 128 columns of F, one scale group, and four lanes of a
// warp hold a row of it, so a scale needs nobody else.
#include "cistron/cuda/gemm/sm90_swiglu_epilogue.cuh"
#include "cistron/cuda/quant/mxfp8_convert.cuh"
#include "cistron/ops/mxfp8_format.h"

namespace cistron::cuda::sm90 {

/// A piece of 128 columns of E4M3: register 2i + h has columns 8i + 2 (lane % 4) and the next of row lane / 4 + 8h.
struct StoreE4m3 {
  __device__ static __forceinline__ void write(uint32_t staging, const uint32_t* pairs, int lane) {
#pragma unroll
    for (int i = 0; i < 16; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        asm volatile(
            "st.shared.u16 [%0], %1;" ::"r"(chunk_address(staging, lane / 4 + 8 * half, i / 2) + i % 2 * 8 + lane % 4 * 2),
            "h"(static_cast<uint16_t>(pairs[2 * i + half]))
            : "memory");
  }
  __device__ static __forceinline__ void store(const CUtensorMap* map, device::BoxStart at, uint32_t staging) {
    device::store_box(map, at, staging);
  }
};

/// As SwigluForward, whose act is quantised.
struct Mxfp8SwigluForward {
  static constexpr int kTileColumns = SwigluForward::kTileColumns;
  static constexpr int kBuffers = 2;
  static constexpr int kBarriers = 0;

  struct Args {
    PackedOutput gate_up;
    CUtensorMap act;
    const float* weight;
    uint8_t* scales;  // of act
    int scale_pitch;
    Bias bias;  // in two sections
  };

  __device__ static void init(uint32_t) {}
  __device__ static void begin(const Args&, const Tile&, uint32_t, uint32_t) {}

  __device__ static __forceinline__ void finish(const Args& args, const Tile& tile, uint32_t staging, uint32_t, float (&d)[128]) {
    const ThreadRows rows(tile, args.weight);
    SwigluForward::add_biases(args.bias, tile, d);
    if (device::lane_index() == 0) device::wait_stores_read<0>();  // five pieces: the last tile ended in this one's first buffer
    uint32_t act[32];                                              // up, then the activation in its place
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
      uint32_t gate[16], *up = act + 16 * piece;
      const int column = tile.column + 64 * piece;
      SwigluForward::pack(gate, d + 32 * piece);
      store_packed<kBuffers>(args.gate_up, rows, column, 0, staging, 2 * piece, gate);
      SwigluForward::pack(up, d + 32 * piece + 64);
      store_packed<kBuffers>(args.gate_up, rows, column, 1, staging, 2 * piece + 1, up);
      StorePairs::read(staging, gate, device::lane_index());
      StorePairs::read(staging + kPieceBytes, up, device::lane_index());
      SwigluForward::activate(rows, gate, up);
    }
    quantize(args, tile, rows, act);
    store_piece<StoreE4m3, kBuffers>(&args.act, {tile.column, rows.first, 0}, staging, 4, act);
  }

  /// Pairs of bf16 to pairs of E4M3, in their places.
  __device__ static __forceinline__ void quantize(const Args& args, const Tile& tile, const ThreadRows& rows,
                                                  uint32_t (&act)[32]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t largest = 0;  // as two 16-bit numbers
#pragma unroll
      for (int i = half; i < 32; i += 2) largest = __vmaxu2(largest, act[i] & 0x7fff7fffU);
      uint32_t amax = max(largest << 16, largest & 0xffff0000U);
      amax = max(amax, __shfl_xor_sync(~0U, amax, 1));
      amax = max(amax, __shfl_xor_sync(~0U, amax, 2));
      const uint8_t scale = ops::e8m0_from_amax(amax);
      const float inverse = ops::e8m0_inverse(scale);
      if (device::lane_index() % 4 == 0)
        args.scales[tile.column / kTileColumns * static_cast<int64_t>(args.scale_pitch) + rows.at(half)] = scale;
#pragma unroll
      for (int i = half; i < 32; i += 2) act[i] = e4m3_pair(low(act[i]) * inverse, high(act[i]) * inverse);
    }
  }
};

}  // namespace cistron::cuda::sm90
