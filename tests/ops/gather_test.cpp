#include "cistron/ops/gather.h"

#include <gmock/gmock.h>

#include "cistron/cpu/ref/gather.h"
#include "tests/ops/routing_support.h"

namespace cistron {
namespace {

using test::error_of, test::ints, test::poisoned, test::random_tensor, test::to_double, test::to_matrix, test::within;
using testing::HasSubstr;

constexpr DType kFloats[] = {DType::kF32, DType::kBF16};

TEST(Gather, CopiesRowsZeroesPadsAndTouchesNothingPastTheEnd) {
  test::CpuContext ctx(2);
  for (const auto& c : test::routing_cases())
    for (DType dtype : kFloats)
      for (int64_t hidden : {17, 80, 256}) {
        const ops::Groups groups = test::groups_of(ctx, c, 1);
        const Tensor x = random_tensor(ctx, {c.tokens, hidden}, dtype, 3);
        const Tensor out = poisoned(ctx, {groups.max_rows(), hidden}, dtype);
        ops::gather(ctx, {x, groups, out});
        auto want = cpu::ref::gather(to_matrix(x), test::used_source_rows(groups));
        EXPECT_TRUE(within(out.rows(0, want.rows), want.data, 0.0));
        for (double v : to_double(out.rows(want.rows, groups.max_rows() - want.rows))) EXPECT_TRUE(std::isnan(v));
        want(want.rows - 1, hidden - 1) += 1;
        EXPECT_FALSE(within(out.rows(0, want.rows), want.data, 0.0));
      }
}

TEST(Combine, SumsATokensRows) {
  test::CpuContext ctx(2);
  for (const auto& c : test::routing_cases())
    for (DType dtype : kFloats)
      for (bool accumulate : {false, true})
        for (int64_t hidden : {17, 80, 256}) {
          const ops::Groups groups = test::groups_of(ctx, c, 1);
          const Tensor x = random_tensor(ctx, {groups.max_rows(), hidden}, dtype, 4);
          test::poison_unused_rows(x, groups);
          const Tensor out =
              accumulate ? random_tensor(ctx, {c.tokens, hidden}, dtype, 5) : poisoned(ctx, {c.tokens, hidden}, dtype);
          auto want = accumulate ? to_matrix(out) : cpu::ref::Matrix<double>(c.tokens, hidden);
          auto size = want, magnitude = to_matrix(x);
          const cpu::ref::Matrix<int32_t> rows(c.tokens, c.top_k, ints(groups.token_rows));
          for (auto* m : {&size, &magnitude})
            for (double& v : m->data) v = std::abs(v);
          cpu::ref::combine(to_matrix(x), rows, want);
          cpu::ref::combine(magnitude, rows, size);
          // k additions in f32, then one rounding to the output
          std::vector<double> bound;
          for (size_t i = 0; i < size.data.size(); ++i)
            bound.push_back(static_cast<double>(c.top_k) * 0x1p-24 * size.data[i] * 1.01 +
                            (dtype == DType::kBF16 ? 0x1p-8 * std::abs(want.data[i]) : 0.0));
          ops::combine(ctx, {x, groups, out, accumulate});
          EXPECT_TRUE(within(out, want.data, bound));
          want(0, 0) -= to_matrix(x)(rows(0, c.top_k - 1), 0);  // control: the last choice forgotten
          EXPECT_FALSE(within(out, want.data, bound));
        }
}

// An expert-parallel rank holds rows of some choices only; the rest count nothing.
TEST(Combine, ChoicesWithoutARowCountNothing) {
  test::CpuContext ctx(2);
  for (DType dtype : kFloats) {
    const Tensor experts = test::random_choices(ctx, 130, 3, 8, test::Choice::kRandom, 1);
    const Tensor weights = random_tensor(ctx, experts.shape(), DType::kF32, 2);
    const ops::Groups groups = test::make_groups(ctx, experts, 3, weights, 8, 3, 2);
    const Tensor x = random_tensor(ctx, {groups.max_rows(), 80}, dtype, 4), out = poisoned(ctx, {130, 80}, dtype);
    test::poison_unused_rows(x, groups);
    const auto rows = ints(groups.token_rows);
    ASSERT_NE(std::count(rows.begin(), rows.end(), -1), 0);
    cpu::ref::Matrix<double> want(130, 80);
    const cpu::ref::Matrix<int32_t> choices(130, 3, rows);
    auto size = want, magnitude = to_matrix(x);
    for (double& v : magnitude.data) v = std::abs(v);
    cpu::ref::combine(to_matrix(x), choices, want);
    cpu::ref::combine(magnitude, choices, size);
    std::vector<double> bound;
    for (size_t i = 0; i < size.data.size(); ++i)
      bound.push_back(3 * 0x1p-24 * size.data[i] * 1.01 + (dtype == DType::kBF16 ? 0x1p-8 * std::abs(want.data[i]) : 0.0));
    ops::combine(ctx, {x, groups, out});
    EXPECT_TRUE(within(out, want.data, bound));
    for (int64_t t = 0; t < 130; ++t)
      if (choices(t, 0) < 0) want(t, 0) += to_matrix(x)(0, 0);  // control: row 0 instead
    EXPECT_FALSE(within(out, want.data, bound));
  }
}

TEST(GatherChoices, TakesARowsNumberByChoice) {
  test::CpuContext ctx(2);
  for (const auto& c : test::routing_cases())
    for (const int32_t first : {0, 1}) {
      const Tensor experts = test::random_choices(ctx, c.tokens, c.top_k, c.experts, c.choice, 1);
      const Tensor weights = random_tensor(ctx, experts.shape(), DType::kF32, 2);
      const ops::Groups groups = test::make_groups(ctx, experts, c.experts, weights, c.alignment, 3, first);
      const Tensor rows = random_tensor(ctx, {groups.max_rows()}, DType::kF32, 3);
      test::poison_unused_rows(rows.reshape({groups.max_rows(), 1}), groups);
      const Tensor out = poisoned(ctx, experts.shape(), DType::kF32);
      ops::gather_choices(ctx, {rows, groups, out});
      std::vector<double> want;
      for (const int32_t row : ints(groups.token_rows)) want.push_back(row < 0 ? 0 : to_double(rows)[static_cast<size_t>(row)]);
      EXPECT_TRUE(within(out, want, 0.0));
      want.back() += 1;
      EXPECT_FALSE(within(out, want, 0.0));
    }
}

// <gather(x), y> = <x, combine(y)>: each is the other's backward.
TEST(Combine, IsTheTransposeOfGather) {
  test::CpuContext ctx;
  for (const auto& c : test::routing_cases()) {
    const ops::Groups groups = test::groups_of(ctx, c, 6);
    const Tensor x = random_tensor(ctx, {c.tokens, 80}, DType::kF32, 7);
    const Tensor y = random_tensor(ctx, {groups.max_rows(), 80}, DType::kF32, 8);
    const Tensor gathered = poisoned(ctx, y.shape(), DType::kF32), combined = poisoned(ctx, x.shape(), DType::kF32);
    ops::gather(ctx, {x, groups, gathered});
    ops::combine(ctx, {y, groups, combined});
    const auto dot = [](const Tensor& a, const Tensor& b, int64_t rows, double* magnitude) {
      const auto u = to_double(a.rows(0, rows)), v = to_double(b.rows(0, rows));
      double sum = 0;
      for (size_t i = 0; i < u.size(); ++i) sum += u[i] * v[i], *magnitude += std::abs(u[i] * v[i]);
      return sum;
    };
    double size = 0;
    const auto used = static_cast<int64_t>(test::used_source_rows(groups).size());
    const double left = dot(gathered, y, used, &size), right = dot(x, combined, c.tokens, &size);
    EXPECT_NEAR(left, right, static_cast<double>(c.top_k) * 0x1p-24 * size);
  }
}

TEST(Gather, SameBitsForAnyThreads) {
  EXPECT_TRUE(test::same_for_any_threads([](Context& ctx) {
    const ops::Groups groups = test::groups_of(ctx, {600, 3, 8, test::Choice::kRandom, 8}, 9);
    const Tensor x = random_tensor(ctx, {600, 200}, DType::kF32, 1), out = poisoned(ctx, {groups.max_rows(), 200}, DType::kF32);
    const Tensor sum = poisoned(ctx, x.shape(), DType::kF32);
    ops::gather(ctx, {x, groups, out});
    ops::combine(ctx, {out, groups, sum});
    return std::vector{sum, out.rows(0, 1800)};
  }));
}

TEST(Gather, ChecksShapesAlsoOnMeta) {
  Context ctx = test::meta_context();
  const ops::Groups groups = ops::empty_groups(ctx, 6, 2, 4);
  const Tensor tokens = ctx.empty({6, 8}, DType::kF32), rows = ctx.empty({12, 8}, DType::kF32),
               wide = ctx.empty({12, 9}, DType::kF32), weights = ctx.empty({12}, DType::kF32);
  ops::gather(ctx, {tokens, groups, rows});
  ops::combine(ctx, {rows, groups, tokens});
  EXPECT_THAT(error_of([&] { ops::gather(ctx, {tokens, groups, wide}); }), HasSubstr("[gather] out"));
  EXPECT_THAT(error_of([&] { ops::gather(ctx, {rows, groups, rows}); }), HasSubstr("[gather] x"));
  EXPECT_THAT(error_of([&] { ops::combine(ctx, {tokens, groups, tokens}); }), HasSubstr("[combine] x"));
  EXPECT_THAT(error_of([&] { ops::combine(ctx, {wide, groups, tokens}); }), HasSubstr("[combine] out"));
  ops::gather_choices(ctx, {weights, groups, weights.reshape({6, 2})});
  EXPECT_THAT(error_of([&] { ops::gather_choices(ctx, {tokens, groups, weights}); }), HasSubstr("[gather_choices] rows"));
  EXPECT_THAT(error_of([&] { ops::gather_choices(ctx, {weights, groups, weights}); }), HasSubstr("[gather_choices] out"));
}

}  // namespace
}  // namespace cistron
