#include "cistron/core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace cistron {
namespace {

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    bf16 x;
    x.bits = static_cast<uint16_t>(bits);
    const auto wide = static_cast<float>(x);
    if (std::isnan(wide))
      EXPECT_TRUE(std::isnan(static_cast<float>(bf16(wide))));
    else
      EXPECT_EQ(bf16(wide).bits, x.bits);
  }
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(static_cast<float>(bf16(1.0F + 0x1p-8F)), 1.0F);              // a tie goes to the even neighbour below
  EXPECT_EQ(static_cast<float>(bf16(1.0F + 0x1.8p-7F)), 1.0F + 0x1p-6F);  // and above
  EXPECT_EQ(static_cast<float>(bf16(1.0F + 0x1.1p-8F)), 1.0F + 0x1p-7F);
  EXPECT_TRUE(std::isinf(static_cast<float>(bf16(std::numeric_limits<float>::max()))));
}

TEST(Half, DecodesExactly) {
  EXPECT_EQ(half_to_float(0x3c00), 1.0F);
  EXPECT_EQ(half_to_float(0xc000), -2.0F);
  EXPECT_EQ(half_to_float(0x7bff), 65504.0F);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(half_to_float(0x03ff), 1023 * 0x1p-24F);
  EXPECT_TRUE(std::isinf(half_to_float(0x7c00)));
  EXPECT_TRUE(std::isnan(half_to_float(0x7e00)));
  EXPECT_TRUE(std::signbit(half_to_float(0x8000)));
}

}  // namespace
}  // namespace cistron
