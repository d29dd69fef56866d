#pragma once
// Numbers that the optimizer keeps in less than f32, one at a time, the same on every device. They are rounded stochastically:
// up with a probability equal to the part of a step that is left over, so that what single updates add is right in the mean even
// where each is too small to round to anything.
//
// 8 bits: blocks of `kStateBlock` elements of a row share a scale s, the smallest power of two that no magnitude exceeds, as an
// E8M0 byte (mxfp8_format.h). An element x is kept as a float of 4 fraction bits of |x| / s + d, less d: like a subnormal's,
// steps stop shrinking below d.
//   m: sign and 7 bits, d = 2^-7;    |error| < (|m| + d s) / 16
//   v: 8 bits, d = 2^-15;            |error| < (v + d s) / 16; what is not zero stays at least d s / 16
// (A step is at most 1/16 of |x| / s + d.) So v's floor, 2^-19 of the largest, is the square of 2^-9.5, and m's last step is
// 2^-11 of s: an update m / sqrt(v) that rounding makes of nothing is no larger than those that are there.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "cistron/core/bf16.h"
#include "cistron/ops/mxfp8_format.h"

namespace cistron::ops {

constexpr int64_t kStateBlock = 128;

/// Random words for the elements [column, column + 4) of a row, `column` a multiple of 4, come from Philox with this counter and
/// the parameter's stream as key: a function of the parameter, the row and column in the whole of it, and the step, whatever the
/// layout. Of element j's word the moments' rounding takes a half each with use 0, the weight's the lower half with use 1.
constexpr std::array<uint32_t, 4> rounding_counter(int64_t step, int64_t row, int64_t column, uint32_t use) {
  return {static_cast<uint32_t>(column >> 2), static_cast<uint32_t>(row), static_cast<uint32_t>(step),
          static_cast<uint32_t>(row >> 32) << 1 | use};
}
constexpr std::array<uint32_t, 2> rounding_key(uint64_t stream) {
  return {static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
}

/// The bits of a bf16; `random` has 16 bits, each value as likely.
constexpr uint16_t round_to_bf16(float x, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool finite = (bits & 0x7fffffffU) < kF32Infinity;
  return finite ? static_cast<uint16_t>((bits + random) >> 16) : bf16::round(bits);
}

/// The scale byte of a block whose largest magnitude is `amax`: 0 for zeros, 255 for infinities and NaN.
constexpr uint8_t state_scale(float amax) {
  const uint32_t bits = std::bit_cast<uint32_t>(amax);
  const uint32_t byte = (bits >> 23) + ((bits & 0x7fffffU) != 0 ? 1U : 0U);
  return static_cast<uint8_t>(bits >= kF32Infinity ? 255U : std::min(byte, 254U));
}

constexpr int kDroppedBits = 19;  // of a float's 23 fraction bits

/// `scaled` >= 0; d is `floor`; at most `largest` comes out.
constexpr uint32_t state_code(float scaled, float floor, uint32_t largest, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(scaled + floor) + (random << 3 | 4U);
  return std::min((bits >> kDroppedBits) - (std::bit_cast<uint32_t>(floor) >> kDroppedBits), largest);
}
constexpr float state_value(uint32_t code, float floor) {
  return std::bit_cast<float>((code << kDroppedBits) + std::bit_cast<uint32_t>(floor)) - floor;
}

constexpr float kFirstMomentFloor = 0x1p-7F, kSecondMomentFloor = 0x1p-15F;

/// Of x times the inverse of its block's scale.
constexpr uint8_t first_moment_code(float scaled, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(scaled);
  const uint32_t code = state_code(std::bit_cast<float>(bits & 0x7fffffffU), kFirstMomentFloor, 127U, random);
  return static_cast<uint8_t>(code | (bits >> 24 & 0x80U));
}
constexpr uint8_t second_moment_code(float scaled, uint32_t random) {
  const uint32_t code = state_code(scaled, kSecondMomentFloor, 255U, random);
  return static_cast<uint8_t>(std::max(code, scaled > 0 ? 1U : 0U));
}

/// To be multiplied by the scale.
constexpr float first_moment_value(uint8_t code) {
  const float magnitude = state_value(code & 0x7fU, kFirstMomentFloor);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}
constexpr float second_moment_value(uint8_t code) { return state_value(code, kSecondMomentFloor); }

}  // namespace cistron::ops
