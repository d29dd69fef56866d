#pragma once
// bfloat16 as storage: arithmetic happens in float.
#include <bit>
#include <cstdint>

namespace cistron {

/// The upper half of an IEEE float32.
struct bf16 {
  uint16_t bits = 0;

  bf16() = default;
  /// Rounds to nearest even. NaN stays NaN (its payload's top bit is set).
  explicit bf16(float value) : bits(round(std::bit_cast<uint32_t>(value))) {}
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

  // Branch-free, so that loops over it vectorise.
  static constexpr uint16_t round(uint32_t u) {
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (u >> 16) | 0x40u;
    return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }
};

/// IEEE half precision to float, for checkpoints that hold it (exact).
float half_to_float(uint16_t bits);

}  // namespace cistron
