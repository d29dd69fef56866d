#pragma once
// Operands of products in words of 32 bits along the contraction: one f32, or two bf16, which vdpbf16ps multiplies and adds at
// once. A panel is sixteen rows (or columns) side by side, word after word of the contraction: words[k][16].
#include <array>
#include <type_traits>

#include "cistron/cpu/fast/vec_math.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace cistron::cpu {

/// Whether this build multiplies bf16 words; it then runs on no processor that cannot.
#ifdef __AVX512BF16__
constexpr bool kHasBf16Words = true;
#else
constexpr bool kHasBf16Words = false;
#endif

template <class B>
using Word = std::conditional_t<std::is_same_v<B, float>, float, uint32_t>;
template <class B>
constexpr int64_t kPerWord = static_cast<int64_t>(sizeof(float) / sizeof(B));

template <class V>
V add_product(V sum, float a, const float* b) {
  V columns;
  std::memcpy(&columns, b, sizeof(columns));
  return sum + a * columns;
}
inline F16 add_product([[maybe_unused]] F16 sum, [[maybe_unused]] uint32_t a, [[maybe_unused]] const uint32_t* b) {
#ifdef __AVX512BF16__
  const U16 pairs = U16{} + a;
  U16 columns;
  std::memcpy(&columns, b, sizeof(columns));
  return std::bit_cast<F16>(
      _mm512_dpbf16_ps(std::bit_cast<__m512>(sum), std::bit_cast<__m512bh>(pairs), std::bit_cast<__m512bh>(columns)));
#else
  __builtin_unreachable();
#endif
}

/// Words of two rows of the contraction, in bf16, rounded to nearest.
inline U16 pairs_of([[maybe_unused]] F16 first, [[maybe_unused]] F16 second) {
#ifdef __AVX512BF16__
  using H32 = uint16_t __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)
  const auto both = std::bit_cast<H32>(_mm512_cvtne2ps_pbh(std::bit_cast<__m512>(second), std::bit_cast<__m512>(first)));
  return std::bit_cast<U16>(__builtin_shufflevector(both, both, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9,
                                                    25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
#else
  __builtin_unreachable();
#endif
}

inline void store_word(float* p, F16 v) { store(p, v); }
inline void store_word([[maybe_unused]] bf16* p, [[maybe_unused]] F16 v) {
#ifdef __AVX512BF16__
  store_operand(p, v);
#else
  __builtin_unreachable();
#endif
}

namespace transposing {

using F4 = float __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)

inline F4 load4(const float* p) {
  F4 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Four columns of rows 0, 4, 8 and 12 from p on.
inline F16 load_quarters(const float* p, int64_t ld) {
  const F4 a = load4(p), b = load4(p + 4 * ld), c = load4(p + 8 * ld), d = load4(p + 12 * ld);
  const auto ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
  const auto cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

// In each quarter: elements 0 and 1, or 2 and 3, of a and b in turns.
inline F16 low(F16 a, F16 b) { return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29); }
inline F16 high(F16 a, F16 b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
// In each quarter: the first, or the second, half of a and of b.
inline F16 first(F16 a, F16 b) { return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29); }
inline F16 second(F16 a, F16 b) {
  return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

}  // namespace transposing

/// Four words of sixteen rows: panel[k][i] = rows[i][k]. The bits move, whatever they mean.
inline void transpose(const float* rows, int64_t ld, float* panel) {
  using namespace transposing;  // NOLINT(google-build-using-namespace)
  const F16 r0 = load_quarters(rows, ld), r1 = load_quarters(rows + ld, ld), r2 = load_quarters(rows + 2 * ld, ld),
            r3 = load_quarters(rows + 3 * ld, ld);
  const F16 low01 = low(r0, r1), high01 = high(r0, r1), low23 = low(r2, r3), high23 = high(r2, r3);
  store(panel, transposing::first(low01, low23));
  store(panel + kLanes, second(low01, low23));
  store(panel + 2 * kLanes, transposing::first(high01, high23));
  store(panel + 3 * kLanes, second(high01, high23));
}

/// Sixteen by sixteen words.
inline void transpose_square(const float* rows, float* columns) {
  for (int64_t k = 0; k < kLanes; k += 4) transpose(rows + k, kLanes, columns + k * kLanes);
}

}  // namespace cistron::cpu
