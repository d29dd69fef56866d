#include "cistron/ops/elementwise.h"

#include <gmock/gmock.h>

#include "cistron/cpu/ref/elementwise.h"
#include "tests/ops/support.h"

namespace cistron {
namespace {

using test::copy_of, test::error_of, test::poisoned, test::random_tensor, test::to_double, test::within;
using testing::HasSubstr;

constexpr DType kFloats[] = {DType::kF32, DType::kBF16};
constexpr int64_t kSizes[] = {0, 1, 17, 4096, 70001};

/// |v| u for each: one rounding to `dtype`.
std::vector<double> one_rounding(const std::vector<double>& v, DType dtype) {
  std::vector<double> bound;
  for (double x : v) bound.push_back(std::abs(x) * test::unit_roundoff(dtype));
  return bound;
}

TEST(Cast, RoundsOnceBetweenAllPairs) {
  test::CpuContext ctx(2);
  for (DType from : kFloats)
    for (DType to : kFloats)
      for (int64_t n : kSizes) {
        const Tensor x = random_tensor(ctx, {n}, from, 1);
        const Tensor out = poisoned(ctx, {n}, to);
        ops::cast(ctx, {x, out});
        const bool exact = from == to || to == DType::kF32;
        const auto want = to_double(x);
        EXPECT_TRUE(within(out, want, exact ? std::vector<double>(want.size(), 0.0) : one_rounding(want, to)));
      }
}

TEST(Add, OneRounding) {
  test::CpuContext ctx(2);
  for (DType dtype : kFloats)
    for (int64_t n : kSizes) {
      const Tensor a = random_tensor(ctx, {n}, dtype, 2), b = random_tensor(ctx, {n}, dtype, 3);
      const Tensor out = poisoned(ctx, {n}, dtype);
      ops::add(ctx, {a, b, out});
      auto want = to_double(a);
      const auto other = to_double(b);
      for (size_t i = 0; i < want.size(); ++i) want[i] += other[i];
      // bf16 sums are rounded to f32 first
      auto bound = one_rounding(want, dtype);
      for (double& x : bound) x *= 1.0 + 0x1p-15;
      EXPECT_TRUE(within(out, want, bound));
      if (n > 1) {
        want[1] = to_double(a)[1];
        EXPECT_FALSE(within(out, want, bound));
      }
      const Tensor alias = copy_of(ctx, a);
      ops::add(ctx, {alias, b, alias});
      EXPECT_TRUE(test::same_bits(alias, out));
    }
}

TEST(Zero, EveryByteOfAnyDtype) {
  test::CpuContext ctx(2);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64, DType::kU8})
    for (int64_t n : kSizes) {
      const Tensor x = poisoned(ctx, {n}, dtype);
      ops::zero(ctx, {x});
      EXPECT_TRUE(within(x, std::vector<double>(static_cast<size_t>(n), 0.0), 0.0));
    }
}

TEST(Clamp, ForwardAndBackwardAreExact) {
  test::CpuContext ctx(2);
  for (DType dtype : kFloats)
    for (int64_t n : kSizes) {
      const Tensor x = random_tensor(ctx, {n}, dtype, 4);
      const Tensor dx = random_tensor(ctx, {n}, dtype, 5);
      auto want = to_double(x), want_dx = to_double(dx);
      for (size_t i = 0; i < want.size(); ++i) {
        want[i] = cpu::ref::clamp(want[i], 0.75);
        want_dx[i] = cpu::ref::clamp_backward(want[i], 0.75, want_dx[i]);
      }
      ops::clamp(ctx, {x, 0.75F});
      ops::clamp_backward(ctx, {x, 0.75F, dx});
      EXPECT_TRUE(within(x, want, 0.0));
      EXPECT_TRUE(within(dx, want_dx, 0.0));
      if (n < 1000) continue;
      EXPECT_FALSE(within(dx, to_double(random_tensor(ctx, {n}, dtype, 5)), 0.0));  // control: some were held back
    }
}

TEST(Clamp, ALimitThatBF16RoundsStillHoldsBack) {
  test::CpuContext ctx;
  for (float limit : {0.3F, 7.01F}) {  // rounded up, rounded down
    const Tensor x = test::tensor_of(ctx, {4}, DType::kBF16, {-9, 0.25, 0.125, 9});
    const Tensor dx = test::tensor_of(ctx, {4}, DType::kF32, {1, 1, 1, 1});
    ops::clamp(ctx, {x, limit});
    ops::clamp_backward(ctx, {x, limit, dx});
    EXPECT_EQ(to_double(dx), (std::vector<double>{0, 1, 1, 0})) << limit;
  }
}

TEST(Clamp, KeepsNaN) {
  test::CpuContext ctx;
  const Tensor x = poisoned(ctx, {20}, DType::kF32);
  ops::clamp(ctx, {x, 1.0F});
  for (double v : to_double(x)) EXPECT_TRUE(std::isnan(v));
}

TEST(Elementwise, ChecksShapesAlsoOnMeta) {
  Context ctx = test::meta_context();
  const Tensor a = ctx.empty({3, 5}, DType::kF32), b = ctx.empty({5, 3}, DType::kF32), i = ctx.empty({3, 5}, DType::kI32);
  ops::add(ctx, {a, a, a});
  ops::cast(ctx, {a, ctx.empty({3, 5}, DType::kBF16)});
  ops::clamp(ctx, {a, 1.0F});
  ops::clamp_backward(ctx, {a, 1.0F, a});
  ops::zero(ctx, {i});
  EXPECT_THAT(error_of([&] { ops::add(ctx, {a, b, a}); }), HasSubstr("[add]"));
  EXPECT_THAT(error_of([&] { ops::cast(ctx, {a, b}); }), HasSubstr("[cast]"));
  EXPECT_THAT(error_of([&] { ops::cast(ctx, {a, i}); }), HasSubstr("[cast]"));
  EXPECT_THAT(error_of([&] { ops::clamp(ctx, {i, 1.0F}); }), HasSubstr("[clamp]"));
  EXPECT_THAT(error_of([&] { ops::clamp(ctx, {a, 0.0F}); }), HasSubstr("[clamp]"));
  EXPECT_THAT(error_of([&] { ops::clamp_backward(ctx, {a, 1.0F, b}); }), HasSubstr("[clamp_backward]"));
}

}  // namespace
}  // namespace cistron
