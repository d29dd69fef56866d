#include "cistron/cpu/fast/vec_math.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cistron/core/rng.h"

namespace cistron::cpu {
namespace {

float exp_of(float x) { return exp(splat(x))[7]; }

/// The error in units of the spacing of floats at the result.
double ulps(float got, double want) {
  const double spacing = std::max(std::ldexp(1.0, std::ilogb(std::max(want, 0x1p-126)) - 23), 0x1p-149);
  return std::abs(got - want) / spacing;
}

TEST(VecMath, ExpIsWithinTwoUlpOverTheWholeRange) {
  double worst = 0;
  for (float x = -103.9F; x < 88.7F; x += 0.000317F) worst = std::max(worst, ulps(exp_of(x), std::exp(static_cast<double>(x))));
  EXPECT_LE(worst, 2.0);
  EXPECT_GT(ulps(exp_of(1.5F) * (1.0F + 8e-7F), std::exp(1.5)), 2.0);  // control
}

TEST(VecMath, ExpAtTheEnds) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_of(0.0F), 1.0F);
  EXPECT_EQ(exp_of(inf), inf);
  EXPECT_EQ(exp_of(88.8F), inf);
  EXPECT_EQ(exp_of(1e30F), inf);
  EXPECT_EQ(exp_of(-inf), 0.0F);
  EXPECT_EQ(exp_of(-104.5F), 0.0F);
  EXPECT_EQ(exp_of(-1e30F), 0.0F);
  EXPECT_TRUE(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_GT(exp_of(-100.0F), 0.0F);
}

TEST(VecMath, LogIsWithinAnUlpOfNormalNumbers) {
  const auto log_of = [](float x) { return log(splat(x))[5]; };
  const auto error = [](float got, double want) {
    return want == 0 ? std::abs(got) : std::abs(got - want) / std::ldexp(1.0, std::ilogb(want) - 23);
  };
  double worst = 0;
  for (uint32_t bits = 0x00800000; bits < 0x7f800000; bits += 997) {
    const auto x = std::bit_cast<float>(bits);
    worst = std::max(worst, error(log_of(x), std::log(static_cast<double>(x))));
  }
  EXPECT_LE(worst, 1.0);
  EXPECT_EQ(log_of(1.0F), 0.0F);
  EXPECT_LT(log_of(0.0F), -87.0F);
  EXPECT_LT(log_of(0x1p-140F), -87.0F);
  EXPECT_GT(error(log_of(3.0F) * (1.0F + 4e-7F), std::log(3.0)), 1.0);  // control
}

TEST(VecMath, BF16RoundsAsTheScalarType) {
  const Rng rng(11, 0);
  for (uint64_t i = 0; i < 20000; ++i) {
    float in[kLanes];
    bf16 out[kLanes];
    for (uint64_t j = 0; j < kLanes; ++j) in[j] = std::bit_cast<float>(static_cast<uint32_t>(rng.bits(i * kLanes + j)));
    store(out, load(in));
    for (int64_t j = 0; j < kLanes; ++j) ASSERT_EQ(out[j].bits, bf16(in[j]).bits) << in[j];
    const F16 back = load(out);
    for (int64_t j = 0; j < kLanes; ++j)
      ASSERT_EQ(std::bit_cast<uint32_t>(static_cast<float>(back[j])), static_cast<uint32_t>(out[j].bits) << 16);
  }
}

TEST(VecMath, LanesCoverARowOnceAndNothingBeyond) {
  for (int64_t n : {0, 1, 15, 16, 17, 80}) {
    std::vector<float> in(static_cast<size_t>(n), 2.0F), out(static_cast<size_t>(n) + 1, 5.0F);
    for_lanes(n, [&](Lanes l) { l.store(out.data(), l.load(in.data()) + l.load(out.data())); });
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 7.0F);
    EXPECT_EQ(out.back(), 5.0F);
  }
}

TEST(VecMath, HorizontalSumIsPairwise) {
  F16 v{};
  for (int i = 0; i < kLanes; ++i) v[i] = std::ldexp(1.0F, i);
  EXPECT_EQ(horizontal_sum(v), 65535.0F);
  EXPECT_EQ(horizontal_max(v), 32768.0F);
}

}  // namespace
}  // namespace cistron::cpu
