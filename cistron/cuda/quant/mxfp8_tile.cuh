#pragma once
// A 128 x 128 tile of values in the registers of 256 threads, read once, from which both copies are encoded.
// Warp w holds rows 16 w to 16 w + 15: lanes 0-15 the first eight, lanes 16-31 the last eight; lane l has eight columns from
// 8 (l % 16). So a thread owns an 8 x 8 block: its rows make row-wise stores, its columns 8 bytes of a line of the
// transposed copy.
#include <cuda_bf16.h>

#include <type_traits>

#include "cistron/cuda/quant/mxfp8_convert.cuh"

namespace cistron::cuda {

constexpr int kQuantTile = 128;
constexpr int kQuantThreads = 256;

struct QuantThread {
  int warp = static_cast<int>(threadIdx.x / 32);
  int lane = static_cast<int>(threadIdx.x % 32);
  int half = static_cast<int>(threadIdx.x / 16 % 2);
  int column = static_cast<int>(threadIdx.x % 16 * 8);
  int row = warp * 16 + half * 8;
};

__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffU; }

/// Eight neighbouring values of one row, and what they are multiplied by.
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
  /// Times powers of two: exact, or too small for E4M3 to tell from zero.
  __device__ __forceinline__ Octet scaled(const Octet& s) const {
    return {{times(words.x, s.words.x), times(words.y, s.words.y), times(words.z, s.words.z), times(words.w, s.words.w)}};
  }
  __device__ static __forceinline__ Octet repeated(float x) {
    const uint32_t word = pair(x, x);
    return {{word, word, word, word}};
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
  __device__ __forceinline__ Octet scaled(const Octet& s) const {
    return {{low.x * s.low.x, low.y * s.low.y, low.z * s.low.z, low.w * s.low.w},
            {high.x * s.high.x, high.y * s.high.y, high.z * s.high.z, high.w * s.high.w}};
  }
  __device__ static __forceinline__ Octet repeated(float x) { return {{x, x, x, x}, {x, x, x, x}}; }
};

template <class T>
__device__ __forceinline__ uint2 encoded(const Octet<T>& x) {
  return {e4m3_four(x[0], x[1], x[2], x[3]), e4m3_four(x[4], x[5], x[6], x[7])};
}

/// Eight magnitudes as the bits of their type, which compare as integers (ops/mxfp8_format.h): bf16 in pairs, at half the
/// instructions.
template <class T>
struct Magnitudes {
  static constexpr int kWords = static_cast<int>(2 * sizeof(T));
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  uint32_t words[kWords] = {};

  __device__ static __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
    if constexpr (sizeof(T) == 2) return __vmaxu2(a, b);
    return max(a, b);
  }
  __device__ static __forceinline__ Magnitudes of(const Octet<__nv_bfloat16>& x) {
    constexpr uint32_t kMask = 0x7fff7fffU;
    return {{x.words.x & kMask, x.words.y & kMask, x.words.z & kMask, x.words.w & kMask}};
  }
  __device__ static __forceinline__ Magnitudes of(const Octet<float>& x) {
    Magnitudes out;
#pragma unroll
    for (int j = 0; j < 8; ++j) out.words[j] = magnitude(x[j]);
    return out;
  }
  __device__ __forceinline__ void raise(const Magnitudes& other) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = larger(words[w], other.words[w]);
  }
  /// Over the lanes that differ from this one in bit `step`.
  __device__ __forceinline__ void raise_across(int step) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = larger(words[w], __shfl_xor_sync(0xffffffffU, words[w], step));
  }
  /// The largest, in the type's bits.
  __device__ __forceinline__ uint32_t largest() const {
    uint32_t all = words[0];
#pragma unroll
    for (int w = 1; w < kWords; ++w) all = larger(all, words[w]);
    if constexpr (sizeof(T) == 2) return max(all & 0xffffU, all >> 16);
    return all;
  }
  /// As float32 bits.
  __device__ static __forceinline__ uint32_t widened(uint32_t bits) { return sizeof(T) == 2 ? bits << 16 : bits; }
  /// Number i, as float32 bits.
  __device__ __forceinline__ uint32_t operator[](int i) const {
    uint32_t word = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      if (i * kWords / 8 == w) word = words[w];
    if constexpr (sizeof(T) == 2) return i % 2 == 0 ? word << 16 : word & 0xffff0000U;
    return word;
  }
};

/// The largest magnitudes in each row and column of the thread's block.
template <class T>
struct BlockAmax {
  Magnitudes<T> rows, columns;
  __device__ __forceinline__ explicit BlockAmax(const Octet<T> (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto row = Magnitudes<T>::of(x[i]);
      columns.raise(row);
      if constexpr (sizeof(T) == 2) {
        const uint32_t two = __vmaxu2(__vmaxu2(row.words[0], row.words[1]), __vmaxu2(row.words[2], row.words[3]));
        // Rows 2i and 2i + 1 share a word: the columns' two halves of either meet in its half.
        if (i % 2 == 0)
          rows.words[i / 2] = two;
        else
          rows.words[i / 2] = __vmaxu2(__byte_perm(rows.words[i / 2], two, 0x5410), __byte_perm(rows.words[i / 2], two, 0x7632));
      } else {
        rows.words[i] = row.largest();
      }
    }
  }
};

/// The transposed tile [128 columns][128 rows] on its way through shared memory. The 8-byte pieces of a line are permuted by its
/// eighth, so that the 16 lanes of a half warp, whose lines are 8 apart, meet 16 different pairs of banks; those of a 16-byte
/// chunk stay together, swapped in the second half of the lines.
struct TurnedTile {
  uint2 pieces[kQuantTile][16];

  /// Of scaled values.
  template <class T>
  __device__ __forceinline__ void put(const Octet<T> (&x)[8], const QuantThread& me) {
    const uint32_t eighth = threadIdx.x % 16;
    const uint32_t piece = (threadIdx.x / 16) ^ (eighth % 8 * 2 + eighth / 8);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      pieces[me.column + j][piece] = {e4m3_four(x[0][j], x[1][j], x[2][j], x[3][j]),
                                      e4m3_four(x[4][j], x[5][j], x[6][j], x[7][j])};
  }

  /// After a barrier: `lines` whole lines to memory, 16 bytes a thread.
  __device__ __forceinline__ void store(uint8_t* elements, int64_t pitch, int64_t lines) const {
    const uint32_t chunk = threadIdx.x % 8, in_pass = threadIdx.x / 8;
    const auto left = static_cast<uint32_t>(min(lines, int64_t{kQuantTile})), step = static_cast<uint32_t>(pitch);
#pragma unroll
    for (uint32_t pass = 0; pass < 4; ++pass) {
      const uint32_t line = pass * 32 + in_pass;
      const uint4 pair = reinterpret_cast<const uint4*>(pieces[line])[chunk ^ (line / 8 % 8)];
      const uint4 bytes = pass < 2 ? pair : uint4{pair.z, pair.w, pair.x, pair.y};
      if (line < left) *reinterpret_cast<uint4*>(elements + uint64_t{line} * step + chunk * 16) = bytes;
    }
  }
};

}  // namespace cistron::cuda
