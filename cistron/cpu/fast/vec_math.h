#pragma once
// Sixteen floats at a time in the vector extensions of GCC and Clang: one AVX-512 register, or two of AVX2. Rows that are no
// multiple of 16 end in a partial load and store, so that an element's bits never depend on where in a row it stands.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cistron/core/bf16.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

namespace cistron::cpu {

constexpr int64_t kLanes = 16;

using F16 = float __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)
using U16 = uint32_t __attribute__((vector_size(64)));
using H16 = uint16_t __attribute__((vector_size(32)));

using D8 = double __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)

inline F16 splat(float value) { return F16{} + value; }

inline F16 load(const float* p) {
  F16 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline F16 load(const bf16* p) {
  H16 half;
  std::memcpy(&half, p, sizeof(half));
  return std::bit_cast<F16>(__builtin_convertvector(half, U16) << 16);
}

inline void store(float* p, F16 v) { std::memcpy(p, &v, sizeof(v)); }
#ifdef __AVX512BF16__
/// As `store`, but subnormal numbers become zeros, as in products of bf16.
inline void store_operand(bf16* p, F16 v) {
  const auto half = _mm512_cvtneps_pbh(std::bit_cast<__m512>(v));
  std::memcpy(static_cast<void*>(p), &half, sizeof(half));
}
#endif

/// Rounds as `bf16(float)` does.
inline void store(bf16* p, F16 v) {
  const auto u = std::bit_cast<U16>(v);
#ifdef __AVX512BF16__
  const bool all_normal = _mm512_testn_epi32_mask(std::bit_cast<__m512i>(u), _mm512_set1_epi32(0x7f800000)) == 0;
  if (all_normal) [[likely]]
    return store_operand(p, v);
#endif
  const U16 bits = v != v ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u);
  const H16 half = __builtin_convertvector(bits >> 16, H16);
  std::memcpy(static_cast<void*>(p), &half, sizeof(half));
}

/// The first `n` < 16 elements; the rest are zeros.
template <class T>
F16 load_first(const T* p, int64_t n) {
  T buffer[kLanes] = {};
  std::memcpy(static_cast<void*>(buffer), p, static_cast<size_t>(n) * sizeof(T));
  return load(buffer);
}
template <class T>
void store_first(T* p, int64_t n, F16 v) {
  T buffer[kLanes];
  store(buffer, v);
  std::memcpy(static_cast<void*>(p), buffer, static_cast<size_t>(n) * sizeof(T));
}

/// A window of at most 16 elements of a row: whole in the middle, partial at its end.
struct Lanes {
  int64_t begin;
  int64_t count;
  template <class T>
  F16 load(const T* row) const {
    return count == kLanes ? cpu::load(row + begin) : load_first(row + begin, count);
  }
  template <class T>
  void store(T* row, F16 v) const {
    count == kLanes ? cpu::store(row + begin, v) : store_first(row + begin, count, v);
  }
};

/// f(Lanes) over a row of `n` elements.
template <class F>
inline void for_lanes(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(Lanes{i, kLanes});
  if (i < n) f(Lanes{i, n - i});
}

#ifdef __AVX512F__
constexpr __mmask16 kAll = 0xffff;  // GCC 12 warns of its own unmasked forms
#endif

/// NaN in `v` stays.
inline F16 at_most(F16 v, float limit) {
#ifdef __AVX512F__
  return std::bit_cast<F16>(_mm512_maskz_min_ps(kAll, _mm512_set1_ps(limit), std::bit_cast<__m512>(v)));
#else
  return v > limit ? splat(limit) : v;
#endif
}
inline F16 at_least(F16 v, float limit) {
#ifdef __AVX512F__
  return std::bit_cast<F16>(_mm512_maskz_max_ps(kAll, _mm512_set1_ps(limit), std::bit_cast<__m512>(v)));
#else
  return v < limit ? splat(limit) : v;
#endif
}

inline F16 sqrt(F16 v) {
  for (int i = 0; i < kLanes; ++i) v[i] = std::sqrt(v[i]);
  return v;
}

inline D8 first_doubles(F16 v) { return __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7), D8); }
inline D8 last_doubles(F16 v) { return __builtin_convertvector(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15), D8); }

/// Pairwise: lane i with lane i + 8, then + 4, + 2, + 1.
inline float horizontal_sum(F16 v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

/// NaN in any lane may be lost.
inline float horizontal_max(F16 v) {
  float largest = v[0];
  for (int i = 1; i < kLanes; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

/// e^x to 2 ulp, subnormal results included; inf above 88.73, 0 below -103.98, NaN for NaN.
/// x = n ln 2 + r, |r| <= ln 2 / 2; polynomial of Cephes' expf; 2^n in two factors, for each must be a normal number.
inline F16 exp(F16 x) {
  constexpr float kRound = 12582912.0F;  // 1.5 x 2^23: adding it leaves the nearest integer in the low bits
  x = at_least(at_most(x, 89.0F), -105.0F);
  const F16 shifted = x * 1.44269504F + kRound;
  const F16 n = shifted - kRound;
  const F16 r = (x - n * 0.693359375F) - n * -2.12194440e-4F;
  F16 p = splat(1.9875691500e-4F);
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
#ifdef __AVX512F__
  return std::bit_cast<F16>(_mm512_maskz_scalef_ps(kAll, std::bit_cast<__m512>(p), std::bit_cast<__m512>(n)));
#else
  const U16 whole = std::bit_cast<U16>(shifted) - 0x4b400000u + 254u;  // n + 2 x 127
  const U16 half = whole >> 1;
  return p * std::bit_cast<F16>(half << 23) * std::bit_cast<F16>((whole - half) << 23);
#endif
}

/// Natural logarithm of positive normal numbers to 1 ulp (Cephes' logf); of 0 and subnormals some number below -87.
/// x = m 2^n, sqrt(1/2) <= m < sqrt(2).
inline F16 log(F16 x) {
  using I16 = int32_t __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)
  const I16 bits = std::bit_cast<I16>(x), whole = (bits - 0x3f3504f3) >> 23;
  const F16 n = __builtin_convertvector(whole, F16), r = std::bit_cast<F16>(bits - (whole << 23)) - 1.0F;
  F16 p = splat(7.0376836292e-2F);
  p = p * r - 1.1514610310e-1F;
  p = p * r + 1.1676998740e-1F;
  p = p * r - 1.2420140846e-1F;
  p = p * r + 1.4249322787e-1F;
  p = p * r - 1.6668057665e-1F;
  p = p * r + 2.0000714765e-1F;
  p = p * r - 2.4999993993e-1F;
  p = p * r + 3.3333331174e-1F;
  const F16 square = r * r;
  return (r + (p * r * square + n * -2.12194440e-4F - 0.5F * square)) + n * 0.693359375F;
}

inline F16 sigmoid(F16 x) { return 1.0F / (1.0F + exp(-x)); }

}  // namespace cistron::cpu
