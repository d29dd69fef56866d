#include "cistron/core/dtype.h"

#include <cmath>

#include "cistron/core/error.h"

namespace cistron {

int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kU8:
      return 1;
  }
  CISTRON_CHECK(false, "unknown dtype {}", static_cast<int>(dtype));
  return 0;
}

std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[] = {"f32", "bf16", "f64", "i32", "i64", "u8"};
  return kNames[static_cast<int>(dtype)];
}

float half_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (static_cast<uint32_t>(mantissa) << 13));
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                        : std::ldexp(static_cast<float>(mantissa | 0x400), exponent - 25);
  return sign != 0 ? -magnitude : magnitude;
}

}  // namespace cistron
