#pragma once
// The numbers of MXFP8 (OCP Microscaling v1.0), one at a time, as host arithmetic without branches.
//   E4M3: sign, 4 bits of exponent (bias 7), 3 of mantissa; largest 448; 0x7f and 0xff are NaN; no infinity.
//   E8M0: byte b is 2^(b - 127), 0x00 included; 0xff is NaN.
// The scale is the smallest power of two s with amax / s <= 448 ("round up": NVIDIA, arXiv 2506.08027), so that nothing
// saturates.
#include <algorithm>
#include <bit>
#include <cstdint>

namespace cistron::ops {

constexpr uint32_t kF32Infinity = 0x7f800000U;

/// The scale byte for a block whose largest magnitude has these float32 bits. Zero: 0x00. Infinity: 0xfe. NaN: 0xff.
/// Magnitudes compare as their bits, NaN above all, so an integer maximum over a block surfaces what is wrong in it.
constexpr uint8_t e8m0_from_amax(uint32_t amax) {
  const int32_t exponent = static_cast<int32_t>(amax >> 23);
  const int32_t above_448 = (amax & 0x7fffffU) > 0x600000U ? 1 : 0;
  const int32_t byte = std::max(exponent - 8 + above_448, 0);
  return static_cast<uint8_t>(amax < kF32Infinity ? byte : amax == kF32Infinity ? 0xfe : 0xff);
}

/// 2^(b - 127) or NaN.
constexpr float e8m0_to_float(uint8_t b) {
  const uint32_t bits = static_cast<uint32_t>(b) << 23;
  return std::bit_cast<float>(b == 0xff ? 0x7fc00000U : b == 0 ? 0x00400000U : bits);
}

/// 2^(127 - b) or NaN: what values are multiplied by before they become elements. Exact.
constexpr float e8m0_inverse(uint8_t b) {
  const uint32_t bits = (254U - b) << 23;
  return std::bit_cast<float>(b == 0xff ? 0x7fc00000U : b == 0xfe ? 0x00400000U : bits);
}

/// Rounds to nearest even and saturates at 448, infinity too; any NaN becomes 0x7f.
constexpr uint8_t e4m3_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  const uint32_t a = std::min(magnitude, 0x43e00000U);  // 448
  const uint32_t normal = ((a + 0x7ffffU + ((a >> 20) & 1U)) >> 20) - (120U << 3);
  // Below 2^-6 elements are multiples of 2^-9, and so are floats just above 2^14: adding rounds.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(a) + 16384.0F) - 0x46800000U;
  const uint32_t byte = (a < 0x3c800000U ? subnormal : normal) | ((bits >> 24) & 0x80U);
  return static_cast<uint8_t>(magnitude > kF32Infinity ? 0x7fU : byte);
}

constexpr float e4m3_to_float(uint8_t b) {
  const uint32_t magnitude = b & 0x7fU;
  const uint32_t normal = (magnitude << 20) + (120U << 23);
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9F);
  const uint32_t value = magnitude == 0x7fU ? 0x7fc00000U : magnitude < 8U ? subnormal : normal;
  return std::bit_cast<float>(value | (static_cast<uint32_t>(b & 0x80U) << 24));
}

}  // namespace cistron::ops
