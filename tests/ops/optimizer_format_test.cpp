// What the optimizer keeps in bf16 and in 8 bits: the numbers themselves, then whole updates.
#include "cistron/ops/optimizer_format.h"

#include <gmock/gmock.h>

#include <limits>

#include "cistron/core/rng.h"
#include "tests/ops/optimizer_support.h"

namespace cistron {
namespace {

using test::Kept, test::kKept, test::kStream, test::random_kept, test::same_bits, test::state_at;
using testing::HasSubstr;

constexpr uint32_t kRandoms = 1U << 16;
constexpr uint32_t kNearest = kRandoms / 2;  // adds half a step: what rounding to nearest would always do

/// The mean over everything that a random half word may be.
template <class Round>
double mean_of(const Round& round) {
  double sum = 0;
  for (uint32_t random = 0; random < kRandoms; ++random) sum += round(random);
  return sum / kRandoms;
}

double bf16_value(float x, uint32_t random) {
  return std::bit_cast<float>(static_cast<uint32_t>(ops::round_to_bf16(x, random)) << 16);
}

TEST(OptimizerFormat, Bf16IsRightInTheMean) {
  const Rng rng(1, 0);
  int rejected = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    const auto x = static_cast<float>(rng.normal(i) * std::exp2(static_cast<double>(rng.below(i, 40)) - 20));
    EXPECT_EQ(mean_of([&](uint32_t random) { return bf16_value(x, random); }), x);  // 16 bits are dropped: no rest
    for (const uint32_t random : {0U, kRandoms - 1}) EXPECT_LT(std::abs(bf16_value(x, random) - x), 0x1p-7 * std::abs(x));
    rejected += bf16_value(x, kNearest) != static_cast<double>(x) ? 1 : 0;  // control
  }
  EXPECT_GE(rejected, 99);
}

TEST(OptimizerFormat, Bf16KeepsWhatItHoldsAndWhatIsNotFinite) {
  for (const float x : {0.0F, 1.0F, -0.0F, 0x1p-133F, 1.5F})
    for (const uint32_t random : {0U, kNearest, kRandoms - 1}) EXPECT_EQ(bf16_value(x, random), x);
  EXPECT_TRUE(std::isnan(bf16_value(std::bit_cast<float>(0x7f800001U), 0)));
  EXPECT_TRUE(std::isinf(bf16_value(std::numeric_limits<float>::infinity(), kRandoms - 1)));
}

TEST(OptimizerFormat, CodesStandForTheirDefinition) {
  for (int code = 0; code < 256; ++code) {
    const double magnitude = cpu::ref::state_magnitude(code % 128, 7);
    EXPECT_EQ(ops::first_moment_value(static_cast<uint8_t>(code)), code < 128 ? magnitude : -magnitude);
    EXPECT_EQ(ops::second_moment_value(static_cast<uint8_t>(code)), cpu::ref::state_magnitude(code, 15));
  }
}

TEST(OptimizerFormat, CodesComeBackWhateverTheRandomNumber) {
  for (int code = 0; code < 256; ++code)
    for (const uint32_t random : {0U, kNearest, kRandoms - 1}) {
      const auto byte = static_cast<uint8_t>(code);
      if (byte != 0x80U) {  // -0 becomes 0
        EXPECT_EQ(ops::first_moment_code(ops::first_moment_value(byte), random), byte);
      }
      EXPECT_EQ(ops::second_moment_code(ops::second_moment_value(byte), random), byte);
    }
}

// A step is at most (x + d) / 16; the random number has 16 of the 19 bits that are dropped and stands in the middle of the 8
// numbers that share them, so the mean is off by at most 2^-17 of a step, and x + d is rounded once.
TEST(OptimizerFormat, CodesAreRightInTheMeanAndOffByLessThanAStep) {
  const Rng rng(2, 0);
  int rejected = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    const auto x = static_cast<float>(rng.uniform(i) * std::exp2(-static_cast<double>(rng.below(1000 + i, 9))));
    const auto first = [&](uint32_t random) -> double { return ops::first_moment_value(ops::first_moment_code(-x, random)); };
    const auto second = [&](uint32_t random) -> double { return ops::second_moment_value(ops::second_moment_code(x, random)); };
    const double m_step = (x + 0x1p-7) / 16, v_step = (x + 0x1p-15) / 16;
    const double m_bound = m_step * 0x1p-17 + (x + 0x1p-7) * 0x1p-24, v_bound = v_step * 0x1p-17 + (x + 0x1p-15) * 0x1p-24;
    EXPECT_NEAR(mean_of(first), -x, m_bound);
    EXPECT_NEAR(mean_of(second), x, v_bound);
    for (const uint32_t random : {0U, kRandoms - 1}) {
      EXPECT_LE(std::abs(first(random) + x), m_step);
      EXPECT_LE(std::abs(second(random) - x), v_step);
    }
    rejected += std::abs(first(kNearest) + x) > m_bound && std::abs(second(kNearest) - x) > v_bound ? 1 : 0;  // control
  }
  EXPECT_GE(rejected, 95);
}

TEST(OptimizerFormat, WhatIsNotZeroInVStaysSo) {
  EXPECT_EQ(ops::second_moment_code(0.0F, kRandoms - 1), 0);
  EXPECT_EQ(ops::second_moment_code(1e-30F, 0), 1);
  EXPECT_EQ(ops::first_moment_code(1e-30F, 0), 0);
}

TEST(OptimizerFormat, TheScaleIsTheSmallestPowerOfTwoThatHoldsAll) {
  for (const float x : {1.0F, 1.5F, 2.0F, 3e-20F, 0x1p-126F, 0x1.8p-127F, 1e-45F, 3.4e38F}) {
    const uint8_t scale = ops::state_scale(x);
    const double s = std::ldexp(1.0, scale - 127);
    EXPECT_LE(x, scale == 254 ? 2 * s : s) << x;
    EXPECT_TRUE(scale == 1 || x > s / 2) << x;
  }
  EXPECT_EQ(ops::state_scale(0), 0);
  EXPECT_EQ(ops::state_scale(std::numeric_limits<float>::infinity()), 255);
  EXPECT_EQ(ops::state_scale(std::numeric_limits<float>::quiet_NaN()), 255);
  EXPECT_TRUE(std::isnan(ops::e8m0_to_float(255) * ops::first_moment_value(7)));
}

void step(Context& ctx, const ops::AdamWTensor& t, const StepState& state, float eps = 1e-8F) {
  const std::vector<ops::AdamWTensor> tensors{t};
  ops::adamw(ctx, {.tensors = tensors, .beta1 = test::kBeta1, .beta2 = test::kBeta2, .eps = eps, .state = &state});
}

TEST(AdamWStates, AreWithinAStepOfTheReference) {
  test::CpuContext ctx(2);
  for (const Kept kept : kKept)
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 17}, Shape{2, 5, 130}, Shape{40, 512}, Shape{0, 8}})
      for (const int64_t at : {1, 2, 1000}) {
        const auto before = random_kept(ctx, shape, kept, 0.1F, 3), after = test::copy_of(ctx, before);
        step(ctx, after, state_at(at));
        EXPECT_TRUE(test::is_update_of(before, after, state_at(at), 1e-8F)) << name_of(kept.master) << name_of(kept.states);
        if (shape.numel() < 100) continue;
        auto other = before;  // control
        other.grad = random_tensor(ctx, shape, DType::kF32, 77);
        EXPECT_FALSE(test::is_update_of(other, after, state_at(at), 1e-8F));
      }
}

TEST(AdamWStates, DoNotDependOnHowRowsAreCut) {
  test::CpuContext ctx(2);
  for (const Kept kept : kKept) {
    const auto whole = random_kept(ctx, {10, 300}, kept, 0.1F, 5), parts = test::copy_of(ctx, whole);
    const auto control = test::copy_of(ctx, whole);
    step(ctx, whole, state_at(3));
    for (const auto& [begin, count] : {std::pair(0, 3), std::pair(3, 1), std::pair(4, 6)})
      step(ctx, test::rows_of(parts, begin, count), state_at(3));
    for (size_t i = 0; i < test::kept_tensors(whole).size(); ++i)
      EXPECT_TRUE(same_bits(test::kept_tensors(parts)[i], test::kept_tensors(whole)[i])) << i;
    auto moved = control;
    moved.first_row = 1;
    step(ctx, moved, state_at(3));
    EXPECT_FALSE(same_bits(moved.m, whole.m) && same_bits(moved.master, whole.master));
  }
}

TEST(AdamWStates, SameBitsForAnyThreadsAndOthersAtAnotherStep) {
  for (const Kept kept : kKept) {
    EXPECT_TRUE(test::same_for_any_threads([&](Context& ctx) {
      const auto t = random_kept(ctx, {70, 1000}, kept, 0.1F, 6);
      step(ctx, t, state_at(2));
      return test::kept_tensors(t);
    }));
    test::CpuContext ctx;
    const auto a = random_kept(ctx, {4, 100}, kept, 0.1F, 6), b = test::copy_of(ctx, a);
    StepState state = state_at(2);
    step(ctx, a, state);
    ++state.step;
    step(ctx, b, state);
    EXPECT_FALSE(same_bits(a.m, b.m) && same_bits(a.master, b.master));
  }
}

TEST(AdamWStates, AreNotTouchedWhenNotFinite) {
  test::CpuContext ctx;
  for (const Kept kept : kKept) {
    const auto before = random_kept(ctx, {5, 100}, kept, 0.1F, 8), after = test::copy_of(ctx, before);
    StepState state = state_at(3);
    state.finite = 0;
    step(ctx, after, state);
    for (size_t i = 0; i < test::kept_tensors(after).size(); ++i)
      EXPECT_TRUE(same_bits(test::kept_tensors(after)[i], test::kept_tensors(before)[i])) << i;
  }
}

// Weights of 1 in bf16 that a step lowers by 2^-12, where the next number is 2^-8 below: in the mean they must come down by all
// of it. Each step moves a weight by a whole 2^-8 with probability 1/16, so after n steps the mean over N of them has a deviation
// of at most 2^-8 sqrt(n / 16 N) and six of them are allowed. Rounding to nearest leaves every weight where it is.
TEST(AdamWStates, SmallUpdatesOfBf16WeightsAreRightInTheMean) {
  test::CpuContext ctx(2);
  const Shape shape{64, 1024};
  ops::AdamWTensor t{.master = ctx.empty(shape, DType::kBF16),
                     .grad = ctx.empty(shape, DType::kF32),
                     .m = ctx.empty(shape, DType::kF32),
                     .v = ctx.empty(shape, DType::kF32),
                     .stream = kStream};
  std::ranges::fill(t.master.span<bf16>(), bf16(1.0F));
  std::ranges::fill(t.grad.span<float>(), 1.0F);
  std::ranges::fill(t.m.span<float>(), 1.0F);
  std::ranges::fill(t.v.span<float>(), 1.0F);
  StepState state{.learning_rate = 0x1p-12F};
  constexpr int kSteps = 16;
  for (state.step = 1; state.step <= kSteps; ++state.step) step(ctx, t, state, 0.0F);
  double mean = 0;
  for (const bf16 p : t.master.span<bf16>())
    mean += static_cast<double>(static_cast<float>(p)) / static_cast<double>(shape.numel());
  const double want = 1 - kSteps * 0x1p-12, bound = 6 * 0x1p-8 * std::sqrt(kSteps / 16.0 / static_cast<double>(shape.numel()));
  EXPECT_NEAR(mean, want, bound);
  EXPECT_EQ(bf16_value(1 - 0x1p-12F, kNearest), 1.0);  // control: to nearest, none moves
  EXPECT_GT(1 - want, bound);
}

// v = 0.5 everywhere and gradients of 0: v must decay by b2 a step, which neither 8 bits nor bf16 can show. The deviation of one
// rounding is at most half a step, of 1/16 or 2^-7 of the value, and those of n roundings add up to less than sqrt(n) times that.
TEST(AdamWStates, MomentsDecayInTheMean) {
  test::CpuContext ctx(2);
  const Shape shape{64, 1024};
  for (const DType states : {DType::kBF16, DType::kU8}) {
    auto t = random_kept(ctx, shape, {DType::kF32, states}, 0, 9);
    std::ranges::fill(t.grad.span<float>(), 0.0F);
    if (states == DType::kU8) {
      std::ranges::fill(t.v.span<uint8_t>(), ops::second_moment_code(0.5F, 0));
      std::ranges::fill(t.v_scale.span<uint8_t>(), uint8_t{127});
    } else {
      std::ranges::fill(t.v.span<bf16>(), bf16(0.5F));
    }
    const double start = test::moment_values(t.v, t.v_scale, false)[0];
    StepState state = state_at(1);
    constexpr int kSteps = 20;
    constexpr float kBeta = 0.999F;
    for (state.step = 1; state.step <= kSteps; ++state.step) {
      const std::vector<ops::AdamWTensor> tensors{t};
      ops::adamw(ctx, {.tensors = tensors, .beta1 = 0.9F, .beta2 = kBeta, .eps = 1e-8F, .state = &state});
    }
    double mean = 0;
    for (const double v : test::moment_values(t.v, t.v_scale, false)) mean += v / static_cast<double>(shape.numel());
    const double half_step = 0.5 * 0.5 * (states == DType::kU8 ? 0x1p-4 : 0x1p-7);
    const double bound = 6 * half_step * std::sqrt(kSteps / static_cast<double>(shape.numel()));
    EXPECT_NEAR(mean, start * std::pow(static_cast<double>(kBeta), kSteps), bound) << name_of(states);
    EXPECT_GT(start * (1 - std::pow(static_cast<double>(kBeta), kSteps)), bound) << "a v that stays would pass";
  }
}

TEST(AdamWStates, ChecksShapesAlsoOnMeta) {
  Context ctx = test::meta_context();
  const Shape shape{3, 200};
  const Tensor f = ctx.empty(shape, DType::kF32), h = ctx.empty(shape, DType::kBF16), u = ctx.empty(shape, DType::kU8);
  const Tensor scales = ctx.empty({3, 2}, DType::kU8), wrong = ctx.empty({3, 1}, DType::kU8);
  StepState state;
  const auto adamw = [&](const ops::AdamWTensor& t) { step(ctx, t, state); };
  adamw({.master = h, .grad = f, .m = h, .v = h});
  adamw({.master = f, .grad = f, .m = u, .v = u, .working = h, .m_scale = scales, .v_scale = scales});
  EXPECT_THAT(test::error_of([&] { adamw({.master = h, .grad = f, .m = h, .v = f}); }), HasSubstr("[adamw] v"));
  EXPECT_THAT(test::error_of([&] { adamw({.master = h, .grad = f, .m = u, .v = u, .m_scale = wrong, .v_scale = scales}); }),
              HasSubstr("[adamw] m_scale"));
  EXPECT_THAT(test::error_of([&] { adamw({.master = h, .grad = f, .m = h, .v = h, .working = h}); }),
              HasSubstr("without a master"));
  EXPECT_THAT(test::error_of([&] { adamw({.master = u, .grad = f, .m = h, .v = h}); }), HasSubstr("[adamw] master"));
}

}  // namespace
}  // namespace cistron
