#pragma once
// Epilogues of the two products beside SwiGLU (`ops/grouped_swiglu.h`): what becomes of a tile of [gate, up] = x w^T, and of a
// tile of d = dy w. Tensors [R, 2F] are seen as [2, R, F], so that a box never crosses from gate to up or goes past F. A warp
// works on its own 16 rows, 64 columns at a time. gate_up is packed: what lies behind an expert's last row there is the next
// one's.
#include "cistron/cuda/device/mbarrier.cuh"
#include "cistron/cuda/device/sigmoid.cuh"
#include "cistron/cuda/gemm/sm90_epilogue.cuh"
#include "cistron/cuda/gemm/sm90_launch.cuh"
#include "cistron/cuda/gemm/sm90_tile.cuh"

namespace cistron::cuda::sm90 {

using device::fast_sigmoid;

__device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000U); }

/// A thread's two rows of a tile: pairs of registers alternate between them. Rows past the expert's last one give zeros.
struct ThreadRows {
  int first;         // the warp's
  int packed;        // its place in gate_up
  int count;         // how many there are from it on, none or less where there are none
  uint32_t mask[2];  // of results: behind the last row operands may be anything, NaN too
  float weight[2];

  __device__ ThreadRows(const Tile& tile, const float* weights) {
    const int before = device::warp_index() * kPieceRows;
    first = tile.row + before;
    packed = tile.packed + before;
    count = tile.rows - before;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool counts = at(half) - first < count;
      mask[half] = counts ? ~0U : 0U;
      weight[half] = counts ? __ldg(weights + at(half)) : 0.0F;
    }
  }
  [[nodiscard]] __device__ int at(int half) const { return first + device::lane_index() / 4 + 8 * half; }
};

/// `store_blocks` the other way: four 8 x 8 blocks of bf16 from a swizzled piece, 16 rows by chunks i and i + 1.
__device__ __forceinline__ void load_blocks(uint32_t* v, uint32_t piece, int i, int lane) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(chunk_address(piece, lane % 16, i + lane / 16))
               : "memory");
}

/// Pairs of bf16 as an epilogue's format: a piece in 16 registers.
struct StorePairs {
  __device__ static __forceinline__ void write(uint32_t staging, const uint32_t* pairs, int lane) {
#pragma unroll
    for (int i = 0; i < 8; i += 2, pairs += 4) store_blocks(staging, i, lane, pairs);
  }
  /// What was written, back from shared memory: with values still in registers ptxas would do all the arithmetic of a tile first
  /// and store afterwards, not both at once (bench/NOTES.md).
  __device__ static __forceinline__ void read(uint32_t staging, uint32_t* pairs, int lane) {
#pragma unroll
    for (int i = 0; i < 8; i += 2, pairs += 4) load_blocks(pairs, staging, i, lane);
  }
  __device__ static __forceinline__ void store(const CUtensorMap* map, device::BoxStart at, uint32_t staging) {
    device::store_box(map, at, staging);
  }
};

/// gate_up as the forward writes it.
struct PackedOutput {
  CUtensorMap map;
  uint16_t* data;  // [P, 2 width]
  int width;
};
inline PackedOutput packed_output(const Tensor& gate_up) {
  return {output_map(gate_up, 2), static_cast<uint16_t*>(gate_up.raw()), narrow<int>(gate_up.dim(1) / 2)};
}

/// The first `count` rows of a staged piece, fewer than a box has, without touching the others: no box can.
__device__ __forceinline__ void store_rows(const PackedOutput& out, device::BoxStart at, int count, uint32_t piece) {
#pragma unroll 1
  for (int i = device::lane_index(); i < 8 * count; i += device::kWarp) {
    const int row = i / 8, chunk = i % 8, column = at.column + 8 * chunk;
    if (column >= out.width) continue;
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(chunk_address(piece, row, chunk))
                 : "memory");
    *reinterpret_cast<uint4*>(out.data + (2 * static_cast<int64_t>(at.row + row) + at.outermost) * out.width + column) = v;
  }
  __syncwarp();
}

/// Piece `number` of what this warp stores: a box, or an expert's last rows one by one.
template <int kBuffers>
__device__ __forceinline__ void store_packed(const PackedOutput& out, const ThreadRows& rows, int column, int section,
                                             uint32_t staging, int number, const uint32_t* pairs) {
  const uint32_t buffer = stage_piece<StorePairs, kBuffers>(staging, number, pairs);
  const device::BoxStart at{column, rows.packed, section};
  if (rows.count < kPieceRows) store_rows(out, at, rows.count, buffer);
  if (device::lane_index() == 0) {
    if (rows.count >= kPieceRows) device::store_box(&out.map, at, buffer);
    device::commit_stores();  // perhaps of nothing: pieces are counted in groups
  }
}

/// gate_up = d + bias, act = silu(gate) up weight. Columns [0, 128) of the tile are gate, the others the same columns of up.
struct SwigluForward {
  static constexpr int kTileColumns = 128;  // of F
  static constexpr int kBuffers = 2;
  static constexpr int kPieces = 6;
  static_assert(kPieces % kBuffers == 0);  // else a tile's first piece would meet another order of buffers
  static constexpr int kBarriers = 0;

  struct Args {
    PackedOutput gate_up;
    CUtensorMap act;
    const float* weight;
    Bias bias;  // in two sections
  };

  __device__ static void init(uint32_t) {}
  __device__ static void begin(const Args&, const Tile&, uint32_t, uint32_t) {}

  __device__ static __forceinline__ void finish(const Args& args, const Tile& tile, uint32_t staging, uint32_t, float (&d)[128]) {
    const ThreadRows rows(tile, args.weight);
    add_biases(args.bias, tile, d);
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
      uint32_t gate[16], up[16];
      const int column = tile.column + 64 * piece;
      pack(gate, d + 32 * piece);
      store_packed<kBuffers>(args.gate_up, rows, column, 0, staging, 3 * piece, gate);
      pack(up, d + 32 * piece + 64);
      store_packed<kBuffers>(args.gate_up, rows, column, 1, staging, 3 * piece + 1, up);
      StorePairs::read(staging + 3 * piece % kBuffers * kPieceBytes, gate, device::lane_index());
      StorePairs::read(staging + (3 * piece + 1) % kBuffers * kPieceBytes, up, device::lane_index());
      activate(rows, gate, up);
      store_piece<StorePairs, kBuffers>(&args.act, {column, rows.first, 0}, staging, 3 * piece + 2, up);
    }
  }

  __device__ static __forceinline__ void add_biases(const Bias& bias, const Tile& tile, float (&d)[128]) {
    if (bias.values == nullptr) return;
#pragma unroll
    for (int section = 0; section < 2; ++section)
      add_bias<16>(d + 64 * section, bias.of(tile, section * bias.width + tile.column), bias.width - tile.column, 1.0F, 1.0F);
  }

  // Of a piece: 16 registers.
  __device__ static __forceinline__ void pack(uint32_t* pairs, const float* values) {
#pragma unroll
    for (int j = 0; j < 16; ++j) pairs[j] = pack_bf16(values[2 * j], values[2 * j + 1]);
  }

  /// Takes the place of up.
  __device__ static __forceinline__ void activate(const ThreadRows& rows, const uint32_t* gate, uint32_t* up) {
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float x = low(gate[j]), y = high(gate[j]), weight = rows.weight[j % 2];
      up[j] = rows.mask[j % 2] & pack_bf16(x * fast_sigmoid(x) * low(up[j]) * weight, y * fast_sigmoid(y) * high(up[j]) * weight);
    }
  }
};

/// From d and the saved gate and up: their gradients, the activation again, and this tile's part of the weight's gradient. The
/// pieces of gate and up come while the products run; their gradients take their places in shared memory.
struct SwigluBackward {
  static constexpr int kTileColumns = 256;
  static constexpr int kBuffers = 5;   // (gate, up) twice, act
  static constexpr int kBarriers = 2;  // of each warp: a pair of pieces has come. A tile uses each twice: phases 0 and 1
  static constexpr int kPieces = kTileColumns / 64;

  struct Args {
    CUtensorMap gate_up, dgate_up, act;
    const float* weight;
    float* partials;  // [tiles of columns, rows]
    int rows;
  };

  /// By one lane.
  __device__ static void init(uint32_t barriers) {
    for (int i = 0; i < kBarriers; ++i) device::barrier_init(barriers + 8 * i, 1);
    device::fence_barrier_init();
  }
  __device__ static void load(const Args& args, const Tile& tile, int row, int piece, uint32_t staging, uint32_t barriers) {
    const int slot = piece % 2, column = tile.column + 64 * piece;
    const uint32_t barrier = barriers + 8 * slot, gate = staging + 2 * slot * kPieceBytes;
    device::barrier_expect(barrier, 2 * kPieceBytes);
    device::load_box(gate, &args.gate_up, {column, row, 0}, barrier);
    device::load_box(gate + kPieceBytes, &args.gate_up, {column, row, 1}, barrier);
  }
  __device__ static void begin(const Args& args, const Tile& tile, uint32_t staging, uint32_t barriers) {
    const int row = tile.packed + device::warp_index() * kPieceRows;
    if (device::lane_index() != 0) return;
    device::wait_stores_read<0>();  // the last tile's gradients lie where gate and up come
    load(args, tile, row, 0, staging, barriers);
    load(args, tile, row, 1, staging, barriers);
  }

  __device__ static __forceinline__ void finish(const Args& args, const Tile& tile, uint32_t staging, uint32_t barriers,
                                                const float (&d)[128]) {
    const int lane = device::lane_index();
    const ThreadRows rows(tile, args.weight);
    const uint32_t act = staging + 4 * kPieceBytes;
    float dweight[2] = {0, 0};
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const uint32_t gate = staging + piece % 2 * 2 * kPieceBytes;
      device::barrier_wait(barriers + 8 * (piece % 2), piece / 2);
      if (lane == 0) device::wait_stores_read<0>();  // the piece before's: act's place, and the next pair's, are free
      if (lane == 0 && piece > 0 && piece + 1 < kPieces) load(args, tile, rows.packed, piece + 1, staging, barriers);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 8; i += 2) differentiate(rows, d + 32 * piece + 4 * i, gate, act, i, lane, dweight);
      device::fence_async_proxy();
      __syncwarp();
      if (lane == 0) {
        const int column = tile.column + 64 * piece;
        device::store_box(&args.dgate_up, {column, rows.first, 0}, gate);
        device::store_box(&args.dgate_up, {column, rows.first, 1}, gate + kPieceBytes);
        device::store_box(&args.act, {column, rows.first, 0}, act);
        device::commit_stores();
      }
    }
    store_weights(args, tile, rows, dweight);
  }

  /// 16 rows by 16 columns.
  __device__ static __forceinline__ void differentiate(const ThreadRows& rows, const float* d, uint32_t gate, uint32_t act, int i,
                                                       int lane, float (&dweight)[2]) {
    uint32_t g[4], u[4], a[4];
    load_blocks(g, gate, i, lane);
    load_blocks(u, gate + kPieceBytes, i, lane);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int half = j % 2;
      float dg[2], du[2], y[2];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float x = k == 0 ? low(g[j]) : high(g[j]), up = k == 0 ? low(u[j]) : high(u[j]), dy = d[2 * j + k];
        const float sig = fast_sigmoid(x), silu = x * sig, weighted = dy * rows.weight[half];
        dg[k] = weighted * up * (sig + silu * (1.0F - sig));
        du[k] = weighted * silu;
        dweight[half] += dy * silu * up;
        y[k] = silu * up * rows.weight[half];
      }
      g[j] = rows.mask[half] & pack_bf16(dg[0], dg[1]);
      u[j] = rows.mask[half] & pack_bf16(du[0], du[1]);
      a[j] = rows.mask[half] & pack_bf16(y[0], y[1]);
    }
    store_blocks(gate, i, lane, g);
    store_blocks(gate + kPieceBytes, i, lane, u);
    store_blocks(act, i, lane, a);
  }

  /// Four lanes hold a row.
  __device__ static __forceinline__ void store_weights(const Args& args, const Tile& tile, const ThreadRows& rows,
                                                       const float (&dweight)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = dweight[half] + __shfl_xor_sync(~0U, dweight[half], 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      if (device::lane_index() % 4 == 0 && rows.mask[half] != 0)
        args.partials[tile.column / kTileColumns * static_cast<int64_t>(args.rows) + rows.at(half)] = sum;
    }
  }
};

}  // namespace cistron::cuda::sm90
