// The arithmetic of single numbers, against its definition, over every bf16 value and many floats.
#include "cistron/ops/mxfp8_format.h"

#include "cistron/core/rng.h"
#include "cistron/cpu/ref/mxfp8.h"
#include "tests/ops/support.h"

namespace cistron {
namespace {

using cpu::ref::e4m3_nearest;
using cpu::ref::e4m3_value;
using cpu::ref::e8m0_smallest;

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

template <class F>
void for_each_bf16(F&& f) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) f(from_bits(bits << 16));
}

TEST(Mxfp8Format, ElementsOfEveryBf16) {
  for_each_bf16([](float x) { ASSERT_EQ(ops::e4m3_from_float(x), e4m3_nearest(x)) << x; });
}

TEST(Mxfp8Format, ElementsOfRandomFloats) {
  const Rng rng(7, 1);
  for (uint64_t i = 0; i < 300000; ++i) {
    const auto sign_and_mantissa = static_cast<uint32_t>(rng.bits(i)) & 0x807fffffU;
    const float x = from_bits(sign_and_mantissa | static_cast<uint32_t>(112 + rng.below(i + (1U << 30), 28)) << 23);
    ASSERT_EQ(ops::e4m3_from_float(x), e4m3_nearest(x)) << x;
  }
}

TEST(Mxfp8Format, ElementsOneUlpBesideEveryMiddle) {
  for (uint8_t byte = 0; byte < 0x7e; ++byte) {
    const auto middle = static_cast<float>((e4m3_value(byte) + e4m3_value(static_cast<uint8_t>(byte + 1))) / 2);
    for (const float x : {std::nextafter(middle, 0.0F), middle, std::nextafter(middle, 1e9F)})
      ASSERT_EQ(ops::e4m3_from_float(-x), e4m3_nearest(-x)) << x;
  }
}

TEST(Mxfp8Format, ScaleOfEveryBf16AndBesideEveryLimit) {
  for_each_bf16(
      [](float x) { ASSERT_EQ(ops::e8m0_from_amax(std::bit_cast<uint32_t>(std::fabs(x))), e8m0_smallest(std::fabs(x))) << x; });
  for (int k = -149; k < 120; ++k)
    for (const int ulp : {-1, 0, 1}) {
      const uint32_t bits = std::bit_cast<uint32_t>(std::ldexp(448.0F, k)) + static_cast<uint32_t>(ulp);
      ASSERT_EQ(ops::e8m0_from_amax(bits), e8m0_smallest(from_bits(bits))) << k << " " << ulp;
    }
}

TEST(Mxfp8Format, BytesDecode) {
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    const double element = e4m3_value(byte);
    const double scale = cpu::ref::e8m0_value(byte);
    if (std::isnan(element)) {
      EXPECT_TRUE(std::isnan(ops::e4m3_to_float(byte)));
    } else {
      EXPECT_EQ(ops::e4m3_to_float(byte), element);
      EXPECT_EQ(ops::e4m3_from_float(ops::e4m3_to_float(byte)), byte);
    }
    if (b == 255) {
      EXPECT_TRUE(std::isnan(ops::e8m0_to_float(byte)) && std::isnan(ops::e8m0_inverse(byte)));
    } else {
      EXPECT_EQ(ops::e8m0_to_float(byte), scale);
      EXPECT_EQ(ops::e8m0_inverse(byte), 1 / scale);
    }
  }
}

}  // namespace
}  // namespace cistron
