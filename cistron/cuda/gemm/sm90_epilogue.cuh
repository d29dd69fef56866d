#pragma once
// What becomes of a finished tile. An epilogue is a type with
//   Args                                     what it needs, a parameter of the kernel
//   kTileColumns                             columns of out in a tile (`tile_n`, `sm90_schedule.h`)
//   kBuffers, kBarriers                      pieces of shared memory and barriers of each warp; init(barriers) by one lane
//   begin(args, tile, staging, barriers)     before a tile's products
//   finish(args, tile, staging, barriers, d) after them, by all math warps: d are this warp's 16 rows
// begin and finish not for a tile that is not stored. Here those that store d as it is, in a format:
//   kColumns                        columns of one piece: 128 bytes of output
//   write(staging, d, lane)         this warp's piece [16, kColumns] from 4 registers for each 8 columns, swizzled
//   store(map, at, staging)         one thread: the piece to global memory
// Each warp stores its own 16 rows, some pieces in flight, without waiting for the others.
#include <cuda_bf16.h>

#include "cistron/cuda/device/tma.cuh"
#include "cistron/cuda/gemm/sm90_tile.cuh"

namespace cistron::cuda::sm90 {

/// A piece: a warp's 16 rows by 128 bytes, a box of the copy engine, whose 16-byte chunks lie as its 128-byte swizzle has them.
constexpr int kPieceRows = 16;
constexpr uint32_t kPieceBytes = kPieceRows * 128;

/// Address of a 16-byte chunk of a swizzled piece.
__device__ __forceinline__ uint32_t chunk_address(uint32_t staging, int row, int chunk) {
  return staging + row * 128 + ((chunk ^ (row % 8)) << 4);
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

/// Four 8 x 8 blocks of bf16 to a swizzled piece: 16 rows by chunks i and i + 1.
__device__ __forceinline__ void store_blocks(uint32_t piece, int i, int lane, const uint32_t* v) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(chunk_address(piece, lane % 16, i + lane / 16)),
      "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
      : "memory");
}

struct StoreBf16 {
  static constexpr int kColumns = 64;
  __device__ static __forceinline__ void write(uint32_t staging, const float* d, int lane) {
#pragma unroll
    for (int i = 0; i < kColumns / 8; i += 2, d += 8) {
      const uint32_t pairs[4] = {pack_bf16(d[0], d[1]), pack_bf16(d[2], d[3]), pack_bf16(d[4], d[5]), pack_bf16(d[6], d[7])};
      store_blocks(staging, i, lane, pairs);
    }
  }
  __device__ static __forceinline__ void store(const CUtensorMap* map, device::BoxStart at, uint32_t staging) {
    device::store_box(map, at, staging);
  }
};

struct StoreF32 {
  static constexpr int kColumns = 32;
  __device__ static __forceinline__ void write(uint32_t staging, const float* d, int lane) {
    const int row = lane / 4;
    const uint32_t half = lane % 2 * 8;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i, d += 4) {
      const int chunk = 2 * i + lane % 4 / 2;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(chunk_address(staging, row, chunk) + half), "f"(d[0]), "f"(d[1])
                   : "memory");
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(chunk_address(staging, row + 8, chunk) + half), "f"(d[2]), "f"(d[3])
                   : "memory");
    }
  }
  __device__ static __forceinline__ void store(const CUtensorMap* map, device::BoxStart at, uint32_t staging) {
    device::store_box(map, at, staging);
  }
};

/// Adds in the L2 cache, each element once: the same bits every time.
struct AddF32 : StoreF32 {
  __device__ static __forceinline__ void store(const CUtensorMap* map, device::BoxStart at, uint32_t staging) {
    device::add_box(map, at, staging);
  }
};

/// Piece `number` of what this warp stores, in its kBuffers pieces of shared memory in turn: where it lies there. Each piece is a
/// group of stores: with kBuffers - 1 left, the one that lay in this place has been read.
template <class Format, int kBuffers, class Value>
__device__ __forceinline__ uint32_t stage_piece(uint32_t staging, int number, const Value* values) {
  const int lane = device::lane_index();
  const uint32_t buffer = staging + number % kBuffers * kPieceBytes;
  if (lane == 0) device::wait_stores_read<kBuffers - 1>();
  __syncwarp();
  Format::write(buffer, values, lane);
  device::fence_async_proxy();
  __syncwarp();
  return buffer;
}

/// ... and to global memory.
template <class Format, int kBuffers, class Value>
__device__ __forceinline__ void store_piece(const CUtensorMap* map, device::BoxStart at, uint32_t staging, int number,
                                            const Value* values) {
  const uint32_t buffer = stage_piece<Format, kBuffers>(staging, number, values);
  if (device::lane_index() == 0) {
    Format::store(map, at, buffer);
    device::commit_stores();
  }
}

/// What is added to the sums (`ops/grouped_bias.h`).
struct Bias {
  const float* values;  // [experts, sections x width]; null: nothing
  const float* weight;  // of rows; null: 1
  int sections, width;

  /// From column `column` of B's rows on.
  [[nodiscard]] __device__ const float* of(const Tile& tile, int column) const {
    return values + static_cast<int64_t>(tile.expert) * sections * width + column;
  }
};

/// To a thread's sums of 8 kBlocks columns, of which `columns` there are: registers 4i to 4i + 3 have columns 8i + 2 (lane % 4)
/// and the next, of a row and of the one 8 further.
template <int kBlocks>
__device__ __forceinline__ void add_bias(float* d, const float* values, int columns, float first_scale, float second_scale) {
#pragma unroll
  for (int i = 0; i < kBlocks; ++i, d += 4) {
    const int column = 8 * i + device::lane_index() % 4 * 2;
    if (column >= columns) continue;
    float low, high;  // volatile: all columns' loads at once would want registers that the main loop has
    asm volatile("ld.global.nc.f32 %0, [%2];\n\tld.global.nc.f32 %1, [%2 + 4];" : "=f"(low), "=f"(high) : "l"(values + column));
    d[0] += first_scale * low;
    d[1] += first_scale * high;
    d[2] += second_scale * low;
    d[3] += second_scale * high;
  }
}

template <class Format, int kTileN, int kWarpBuffers>
struct Store {
  static constexpr int kTileColumns = kTileN;
  static constexpr int kBuffers = kWarpBuffers;
  static constexpr int kBarriers = 0;
  static_assert(kTileN / Format::kColumns % kBuffers == 0);  // else a tile's first piece would meet another order of buffers

  struct Args {
    CUtensorMap out;
    bool by_expert;  // out is [E, m, n]
    Bias bias;
  };

  __device__ static void init(uint32_t) {}
  __device__ static void begin(const Args&, const Tile&, uint32_t, uint32_t) {}
  __device__ static __forceinline__ void finish(const Args& args, const Tile& tile, uint32_t staging, uint32_t,
                                                float (&d)[kTileN / 2]) {
    const int row = device::warp_index() * kPieceRows;
    if (row >= tile.rows) return;
    if (args.bias.values != nullptr) {
      const auto scale = [&](int at) {
        return args.bias.weight == nullptr ? 1.0F : at < tile.rows ? __ldg(args.bias.weight + tile.row + at) : 0.0F;
      };
      const int at = row + device::lane_index() / 4;
      add_bias<kTileN / 8>(d, args.bias.of(tile, tile.n), args.bias.width - tile.column, scale(at), scale(at + 8));
    }
#pragma unroll
    for (int piece = 0; piece < kTileN / Format::kColumns; ++piece)
      store_piece<Format, kBuffers>(
          &args.out, {tile.column + piece * Format::kColumns, tile.row + row, args.by_expert ? tile.expert : tile.section},
          staging, piece, d + piece * Format::kColumns / 2);
  }
};

}  // namespace cistron::cuda::sm90
