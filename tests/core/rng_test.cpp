#include "cistron/core/rng.h"

#include <gtest/gtest.h>

#include <cmath>

namespace cistron {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers that ship with Random123 (kat_vectors, philox4x32-10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kAll = 0xffffffff;
  EXPECT_EQ(philox({kAll, kAll, kAll, kAll}, {kAll, kAll}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, MomentsOfTheNormal) {
  const Rng rng(11, 3);
  constexpr int kN = 200000;
  double sum = 0, squares = 0, fourth = 0;
  for (uint64_t i = 0; i < kN; ++i) {
    const double x = rng.normal(i);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  // Five standard errors of each moment.
  EXPECT_NEAR(sum / kN, 0.0, 5 / std::sqrt(kN));
  EXPECT_NEAR(squares / kN, 1.0, 5 * std::sqrt(2.0 / kN));
  EXPECT_NEAR(fourth / kN, 3.0, 5 * std::sqrt(96.0 / kN));
}

TEST(Rng, BelowIsUniformAndStreamsDiffer) {
  const Rng a(1, 0), b(1, 1);
  std::array<int, 7> counts{};
  int equal = 0;
  for (uint64_t i = 0; i < 70000; ++i) {
    ++counts[a.below(i, 7)];
    equal += a.bits(i) == b.bits(i) ? 1 : 0;
  }
  for (const int count : counts) EXPECT_NEAR(count, 10000, 5 * std::sqrt(10000.0));
  EXPECT_EQ(equal, 0);
}

}  // namespace
}  // namespace cistron
