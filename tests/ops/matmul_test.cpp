#include "cistron/ops/matmul.h"

#include <gtest/gtest.h>

#include "cistron/cpu/fast/onednn.h"
#include "cistron/cpu/ref/matmul.h"
#include "tests/ops/product_bounds.h"

namespace cistron::test {
namespace {

struct Case {
  int64_t m, n, k;
  DType in = DType::kF32, out = DType::kF32;
  bool accumulate = false;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << fmt::format("{}x{}x{} {} to {}{}", c.m, c.n, c.k, name_of(c.in), name_of(c.out), c.accumulate ? ", added" : "");
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {1, 33, 256}, {3, 80, 20}, {130, 300, 70}, {257, 33, 129}, {600, 40, 24}})
    for (const auto& [in, out] : {std::pair{DType::kF32, DType::kF32}, {DType::kBF16, DType::kF32}, {DType::kBF16, DType::kBF16}})
      for (const bool accumulate : {false, true})
        if (!accumulate || out == DType::kF32) all.push_back({m, n, k, in, out, accumulate});
  return all;
}

class Matmul : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (c.in == DType::kBF16 && !cpu::has_fast_bf16()) GTEST_SKIP() << "no bf16 products on this processor";
  }
  Tensor output(const Shape& shape, DType out) {
    return c.accumulate ? random_tensor(ctx, shape, out, 3) : poisoned(ctx, shape, out);
  }
  // `want` and `magnitude` come without what was in `out` before.
  void expect_product(const Tensor& out, const Tensor& before, cpu::ref::Matrix<double> want, cpu::ref::Matrix<double> magnitude,
                      int64_t terms) {
    const auto old = to_double(before);
    for (size_t i = 0; c.accumulate && i < old.size(); ++i) {
      want.data[i] += old[i];
      magnitude.data[i] += std::abs(old[i]);
    }
    const auto bound = product_bound(magnitude, terms, c.in, out.dtype());
    EXPECT_TRUE(within(out, want.data, bound));
    // One average term too few must show; behind the rounding of bf16, half of them.
    want.data[0] -= magnitude.data[0] / (out.dtype() == DType::kBF16 ? 2.0 : static_cast<double>(terms));
    EXPECT_FALSE(within(out, want.data, bound));
  }

  const Case c = GetParam();
  CpuContext ctx{2};
  Tensor x = random_tensor(ctx, {c.m, c.k}, c.in, 1), w = random_tensor(ctx, {c.n, c.k}, c.in, 2),
         dy = random_tensor(ctx, {c.m, c.n}, c.in, 4);
};

TEST_P(Matmul, Forward) {
  const Tensor out = output({c.m, c.n}, c.out), before = copy_of(ctx, out);
  ops::matmul_forward(ctx, {.x = x, .w = w, .out = out, .accumulate = c.accumulate});
  const auto a = to_matrix(x), b = to_matrix(w);
  expect_product(out, before, cpu::ref::matmul_forward(a, b), cpu::ref::matmul_forward(absolute(a), absolute(b)), c.k);
}

TEST_P(Matmul, Dgrad) {
  const Tensor out = output({c.m, c.k}, c.out), before = copy_of(ctx, out);
  ops::matmul_dgrad(ctx, {.dy = dy, .w = w, .out = out, .accumulate = c.accumulate});
  const auto a = to_matrix(dy), b = to_matrix(w);
  expect_product(out, before, cpu::ref::matmul_dgrad(a, b), cpu::ref::matmul_dgrad(absolute(a), absolute(b)), c.n);
}

TEST_P(Matmul, Wgrad) {
  const Tensor out = output({c.n, c.k}, DType::kF32), before = copy_of(ctx, out);
  ops::matmul_wgrad(ctx, {.dy = dy, .x = x, .out = out, .accumulate = c.accumulate});
  const auto a = to_matrix(dy), b = to_matrix(x);
  expect_product(out, before, cpu::ref::matmul_wgrad(a, b), cpu::ref::matmul_wgrad(absolute(a), absolute(b)), c.m);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Matmul, testing::ValuesIn(cases()));

TEST(MatmulBits, RowsDoNotDependOnTheirNeighboursOrThreads) {
  CpuContext one(1), three(3);
  for (const int64_t k : {64, 80, 256, 500, 1024})
    for (const int64_t n : {33, 64, 300}) {
      const Tensor x = random_tensor(one, {333, k}, DType::kF32, 1), w = random_tensor(one, {n, k}, DType::kF32, 2),
                   wt = random_tensor(one, {k, n}, DType::kF32, 3);
      const Tensor y = poisoned(one, {333, n}, DType::kF32), yt = poisoned(one, {333, n}, DType::kF32);
      ops::matmul_forward(one, {.x = x, .w = w, .out = y});
      ops::matmul_dgrad(one, {.dy = x, .w = wt, .out = yt});
      for (const int64_t m : {1, 2, 3, 7, 15, 16, 17, 63, 64, 65, 129, 200})
        for (const int64_t first : {int64_t{0}, int64_t{5}, 333 - m}) {
          const Tensor some = poisoned(three, {m, n}, DType::kF32), some_t = poisoned(three, {m, n}, DType::kF32);
          ops::matmul_forward(three, {.x = x.rows(first, m), .w = w, .out = some});
          ops::matmul_dgrad(three, {.dy = x.rows(first, m), .w = wt, .out = some_t});
          ASSERT_TRUE(same_bits(some, y.rows(first, m))) << m << " rows from " << first << ", n " << n << ", k " << k;
          ASSERT_TRUE(same_bits(some_t, yt.rows(first, m))) << m << " rows from " << first << ", n " << n << ", k " << k;
        }
    }
}

TEST(MatmulBits, WgradDoesNotDependOnThreads) {
  CpuContext one(1), three(3);
  const Tensor dy = random_tensor(one, {1100, 300}, DType::kF32, 1), x = random_tensor(one, {1100, 530}, DType::kF32, 2);
  const Tensor a = poisoned(one, {300, 530}, DType::kF32), b = poisoned(one, {300, 530}, DType::kF32);
  ops::matmul_wgrad(one, {.dy = dy, .x = x, .out = a});
  ops::matmul_wgrad(three, {.dy = dy, .x = x, .out = b});
  EXPECT_TRUE(same_bits(a, b));
}

TEST(MatmulEdges, SizesOfZero) {
  CpuContext ctx;
  const Tensor none = ctx.empty({0, 5}), w = random_tensor(ctx, {4, 5}, DType::kF32, 1), no_rows = ctx.empty({0, 4});
  ops::matmul_forward(ctx, {.x = none, .w = w, .out = no_rows});
  const Tensor dw = poisoned(ctx, {4, 5}, DType::kF32);
  ops::matmul_wgrad(ctx, {.dy = no_rows, .x = none, .out = dw});
  EXPECT_TRUE(within(dw, std::vector<double>(20, 0.0), 0.0));
  const Tensor kept = copy_of(ctx, w);
  ops::matmul_wgrad(ctx, {.dy = no_rows, .x = none, .out = w, .accumulate = true});
  EXPECT_TRUE(same_bits(w, kept));
  const Tensor y = poisoned(ctx, {3, 4}, DType::kF32);
  ops::matmul_forward(ctx, {.x = ctx.empty({3, 0}), .w = ctx.empty({4, 0}), .out = y});
  EXPECT_TRUE(within(y, std::vector<double>(12, 0.0), 0.0));
}

TEST(MatmulChecks, ShapesAndDtypesOnMeta) {
  Context ctx = meta_context();
  const Tensor x = ctx.empty({8, 5}), w = ctx.empty({4, 5}), y = ctx.empty({8, 4});
  ops::matmul_forward(ctx, {.x = x, .w = w, .out = y});
  ops::matmul_dgrad(ctx, {.dy = y, .w = w, .out = x});
  ops::matmul_wgrad(ctx, {.dy = y, .x = x, .out = w});
  EXPECT_NE(error_of([&] { ops::matmul_forward(ctx, {.x = y, .w = w, .out = y}); }).find("[matmul_forward]"), std::string::npos);
  EXPECT_NE(error_of([&] { ops::matmul_dgrad(ctx, {.dy = x, .w = w, .out = x}); }).find("[matmul_dgrad]"), std::string::npos);
  const Tensor wrong = ctx.empty({4, 5}, DType::kBF16);
  EXPECT_NE(error_of([&] { ops::matmul_wgrad(ctx, {.dy = y, .x = x, .out = wrong}); }), "");
  EXPECT_NE(error_of([&] { ops::matmul_forward(ctx, {.x = x, .w = wrong, .out = y}); }), "");
  const Tensor xb = ctx.empty({8, 5}, DType::kBF16), yb = ctx.empty({8, 4}, DType::kBF16);
  EXPECT_NE(error_of([&] { ops::matmul_forward(ctx, {.x = xb, .w = wrong, .out = yb, .accumulate = true}); }), "");
}

}  // namespace
}  // namespace cistron::test
