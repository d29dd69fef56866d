#pragma once
// A 128 x 128 tile of values in the registers of 256 threads, read once, from which both copies are encoded.
// Warp w holds rows 16 w to 16 w + 15: lanes 0-15 the first eight, lanes 16-31 the last eight; lane l has eight columns from
// 8 (l % 16). So a thread owns an 8 x 8 block: its rows make row-wise stores, its columns 8 bytes of a line of the
// transposed copy.
#include <cuda_bf16.h>

#include "cistron/cuda/quant/mxfp8_convert.cuh"

namespace cistron::cuda {

constexpr int kQuantTile = 128;
constexpr int kQuantThreads = 256;

struct QuantThread {
  int warp = static_cast<int>(threadIdx.x) / 32;
  int lane = static_cast<int>(threadIdx.x) % 32;
  int half = lane / 16;
  int column = lane % 16 * 8;
  int row = warp * 16 + half * 8;
};

__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffU; }

/// Eight neighbouring values of one row.
template <class T>
struct Octet;

template <>
struct Octet<__nv_bfloat16> {
  uint4 words = {0, 0, 0, 0};
  __device__ __forceinline__ void load(const __nv_bfloat16* p) { words = __ldg(reinterpret_cast<const uint4*>(p)); }
  __device__ __forceinline__ float operator[](int j) const {
    const uint32_t word = j / 2 == 0 ? words.x : j / 2 == 1 ? words.y : j / 2 == 2 ? words.z : words.w;
    return __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xffff0000U);
  }
  /// Times powers of two as pairs of bf16: exact, or too small for E4M3 to tell from zero.
  __device__ __forceinline__ Octet scaled(const uint4& s) const {
    return {{times(words.x, s.x), times(words.y, s.y), times(words.z, s.z), times(words.w, s.w)}};
  }
  /// Of floats that are bf16 numbers.
  __device__ static __forceinline__ uint32_t pair(float low, float high) {
    return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
  }

 private:
  __device__ static __forceinline__ uint32_t times(uint32_t a, uint32_t b) {
    const __nv_bfloat162 product =
        __hmul2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
    return reinterpret_cast<const uint32_t&>(product);
  }
};

template <>
struct Octet<float> {
  float4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
  __device__ __forceinline__ void load(const float* p) {
    low = __ldg(reinterpret_cast<const float4*>(p));
    high = __ldg(reinterpret_cast<const float4*>(p) + 1);
  }
  __device__ __forceinline__ float operator[](int j) const {
    const float4& four = j < 4 ? low : high;
    return j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w;
  }
};

/// The largest magnitude in each row and column of the thread's block, as float32 bits.
template <class T>
struct BlockAmax {
  uint32_t row[8] = {};
  uint32_t column[8] = {};
  __device__ __forceinline__ explicit BlockAmax(const Octet<T> (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        row[i] = max(row[i], magnitude(x[i][j]));
        column[j] = max(column[j], magnitude(x[i][j]));
      }
  }
};

/// bf16 pairs as two 16-bit numbers: half the instructions.
template <>
struct BlockAmax<__nv_bfloat16> {
  uint32_t row[8] = {};
  uint32_t column[8] = {};
  __device__ __forceinline__ explicit BlockAmax(const Octet<__nv_bfloat16> (&x)[8]) {
    uint32_t columns[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t words[4] = {x[i].words.x & 0x7fff7fffU, x[i].words.y & 0x7fff7fffU, x[i].words.z & 0x7fff7fffU,
                                 x[i].words.w & 0x7fff7fffU};
#pragma unroll
      for (int p = 0; p < 4; ++p) columns[p] = __vmaxu2(columns[p], words[p]);
      const uint32_t pair = __vmaxu2(__vmaxu2(words[0], words[1]), __vmaxu2(words[2], words[3]));
      row[i] = max(pair << 16, pair & 0xffff0000U);
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      column[2 * p] = columns[p] << 16;
      column[2 * p + 1] = columns[p] & 0xffff0000U;
    }
  }
};

/// Row-wise: row i of the block times inverse[i], if it is inside the tensor.
template <class T>
__device__ __forceinline__ void store_rows(const Octet<T> (&x)[8], const float (&inverse)[8], uint8_t* elements, int64_t pitch,
                                           int64_t rows_left) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float s = inverse[i];
    const uint2 bytes = {e4m3_four(x[i][0] * s, x[i][1] * s, x[i][2] * s, x[i][3] * s),
                         e4m3_four(x[i][4] * s, x[i][5] * s, x[i][6] * s, x[i][7] * s)};
    if (i < rows_left) *reinterpret_cast<uint2*>(elements + i * pitch) = bytes;
  }
}

/// The transposed tile [128 columns][128 rows] on its way through shared memory. The 8-byte pieces of a line are permuted by its
/// eighth, so that the 16 lanes of a half warp, whose lines are 8 apart, meet 16 different pairs of banks.
struct TurnedTile {
  uint2 pieces[kQuantTile][16];

  template <class T>
  __device__ __forceinline__ void put(const Octet<T> (&x)[8], const float (&inverse)[8], const QuantThread& me) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float s = inverse[j];
      const int line = me.column + j;
      pieces[line][me.row / 8 ^ line / 8] = {e4m3_four(x[0][j] * s, x[1][j] * s, x[2][j] * s, x[3][j] * s),
                                             e4m3_four(x[4][j] * s, x[5][j] * s, x[6][j] * s, x[7][j] * s)};
    }
  }
  /// Of scaled values.
  __device__ __forceinline__ void put(const Octet<__nv_bfloat16> (&x)[8], const QuantThread& me) {
    constexpr float kOnes[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    put(x, kOnes, me);
  }

  /// After a barrier: `lines` whole lines to memory, 16 bytes a thread.
  __device__ __forceinline__ void store(uint8_t* elements, int64_t pitch, int64_t lines) const {
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) {
      const int line = pass * 32 + static_cast<int>(threadIdx.x) / 8;
      const int chunk = static_cast<int>(threadIdx.x) % 8;
      const int swap = line / 8;
      const uint4 pair = reinterpret_cast<const uint4*>(pieces[line])[chunk ^ swap / 2];
      const uint4 bytes = swap % 2 == 0 ? pair : uint4{pair.z, pair.w, pair.x, pair.y};
      if (line < lines) *reinterpret_cast<uint4*>(elements + line * pitch + chunk * 16) = bytes;
    }
  }
};

}  // namespace cistron::cuda
