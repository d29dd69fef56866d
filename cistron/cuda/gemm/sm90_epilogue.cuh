#pragma once
// What becomes of a finished tile: an epilogue is a type with
//   kColumns                        columns of one piece: 128 bytes of output
//   write(staging, d, lane)         this warp's piece [16, kColumns] from 4 registers for each 8 columns, rows of 128 bytes,
//   swizzled store(map, at, staging)         one thread: the piece to global memory
// Each warp stores its own 16 rows, some pieces in flight, without waiting for the others.
#include <cuda_bf16.h>

#include "cistron/cuda/device/tma.cuh"

namespace cistron::cuda::sm90 {

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

struct StoreBf16 {
  static constexpr int kColumns = 64;
  __device__ static __forceinline__ void write(uint32_t staging, const float* d, int lane) {
#pragma unroll
    for (int i = 0; i < kColumns / 8; i += 2, d += 8) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       chunk_address(staging, lane % 16, i + lane / 16)),
                   "r"(pack_bf16(d[0], d[1])), "r"(pack_bf16(d[2], d[3])), "r"(pack_bf16(d[4], d[5])), "r"(pack_bf16(d[6], d[7]))
                   : "memory");
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

/// This warp's 16 rows of a tile, `at` its first element, through kBuffers pieces of shared memory.
template <class Epilogue, int kBuffers, int kRegisters>
__device__ __forceinline__ void store_rows(const CUtensorMap* map, device::BoxStart at, uint32_t staging,
                                           const float (&d)[kRegisters]) {
  constexpr int kPieces = 2 * kRegisters / Epilogue::kColumns;
  const int lane = device::lane_index();
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const uint32_t buffer = staging + piece % kBuffers * kPieceBytes;
    if (lane == 0) device::wait_stores_read<kBuffers - 1>();
    __syncwarp();
    Epilogue::write(buffer, d + piece * Epilogue::kColumns / 2, lane);
    device::fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      Epilogue::store(map, {at.column + piece * Epilogue::kColumns, at.row, at.outermost}, buffer);
      device::commit_stores();
    }
  }
}

}  // namespace cistron::cuda::sm90
