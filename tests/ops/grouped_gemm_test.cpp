#include "cistron/ops/grouped_gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cistron/core/checked.h"
#include "cistron/cpu/fast/onednn.h"
#include "cistron/cpu/ref/grouped_gemm.h"
#include "cistron/ops/matmul.h"
#include "tests/ops/product_bounds.h"

namespace cistron::test {
namespace {

struct Case {
  std::vector<int64_t> counts;
  int64_t n, k;
  int64_t alignment = 1;
  DType in = DType::kF32, out = DType::kF32;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << fmt::format("[{}] rows, n {}, k {}, {} to {}", fmt::join(c.counts, " "), c.n, c.k, name_of(c.in), name_of(c.out));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [in, out] : {std::pair{DType::kF32, DType::kF32}, {DType::kBF16, DType::kF32}, {DType::kBF16, DType::kBF16}}) {
    all.push_back({{1}, 20, 36, 1, in, out});
    all.push_back({{0, 0, 0}, 16, 16, 1, in, out});
    all.push_back({{0, 140, 0, 0}, 80, 33, 1, in, out});
    all.push_back({{3, 0, 1, 129, 17, 16}, 24, 260, 1, in, out});
    all.push_back({{3, 0, 1, 129, 17, 16}, 260, 24, 8, in, out});
    all.push_back({{530, 1}, 40, 30, 128, in, out});
  }
  return all;
}

// Segments with these counts; the arrays that products do not read stay poisoned.
struct TestGroups {
  ops::Groups groups;
  cpu::ref::Segments segments;

  TestGroups(const Context& ctx, const std::vector<int64_t>& counts, int64_t alignment) {
    segments.counts = counts;
    std::vector<double> starts{0};
    for (const int64_t count : counts) {
      segments.starts.push_back(static_cast<int64_t>(starts.back()));
      starts.push_back(starts.back() + static_cast<double>(round_up(count, alignment)));
    }
    const auto experts = static_cast<int64_t>(counts.size()), rows = static_cast<int64_t>(starts.back()) + 3;
    groups = {.starts = tensor_of(ctx, {experts + 1}, DType::kI32, starts),
              .counts = tensor_of(ctx, {experts}, DType::kI32, {counts.begin(), counts.end()}),
              .source_row = poisoned(ctx, {rows}, DType::kI32),
              .weight = poisoned(ctx, {rows}, DType::kF32),
              .token_rows = poisoned(ctx, {rows, 1}, DType::kI32)};
  }
  [[nodiscard]] std::vector<bool> in_use() const {
    std::vector<bool> used(static_cast<size_t>(groups.max_rows()));
    cpu::ref::for_rows(segments, [&](int64_t, int64_t row) { used[static_cast<size_t>(row)] = true; });
    return used;
  }
};

class GroupedGemm : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (c.in == DType::kBF16 && !cpu::has_fast_bf16()) GTEST_SKIP() << "no bf16 products on this processor";
  }
  // Random rows in use, NaN elsewhere: what pad rows hold must not matter.
  Tensor rows(int64_t width, uint64_t seed) {
    Tensor tensor = random_tensor(ctx, {routed.groups.max_rows(), width}, c.in, seed);
    const auto used = routed.in_use();
    for (size_t r = 0; r < used.size(); ++r)
      if (!used[r]) poison(tensor.rows(static_cast<int64_t>(r), 1));
    return tensor;
  }
  // Only rows in use are compared.
  void expect_rows(const Tensor& got, const cpu::ref::Matrix<double>& want, const cpu::ref::Matrix<double>& magnitude,
                   int64_t terms) {
    const auto used = routed.in_use();
    auto values = to_double(got);
    for (size_t i = 0; i < values.size(); ++i)
      if (!used[i / static_cast<size_t>(want.cols)]) values[i] = want.data[i];
    EXPECT_TRUE(within(values, want.data, product_bound(magnitude, terms, c.in, c.out)));
  }

  const Case c = GetParam();
  CpuContext ctx{2};
  TestGroups routed{ctx, c.counts, c.alignment};
  Tensor w = random_tensor(ctx, {static_cast<int64_t>(c.counts.size()), c.n, c.k}, c.in, 7);
};

TEST_P(GroupedGemm, Forward) {
  const Tensor x = rows(c.k, 1), out = poisoned(ctx, {x.dim(0), c.n}, c.out);
  ops::grouped_gemm_forward(ctx, {.x = x, .w = w, .groups = routed.groups, .out = out});
  const auto a = to_matrix(x), b = to_matrix(w);
  expect_rows(out, cpu::ref::grouped_gemm_forward(a, b, c.n, routed.segments),
              cpu::ref::grouped_gemm_forward(absolute(a), absolute(b), c.n, routed.segments), c.k);
}

TEST_P(GroupedGemm, Dgrad) {
  const Tensor dy = rows(c.n, 1), out = poisoned(ctx, {dy.dim(0), c.k}, c.out);
  ops::grouped_gemm_dgrad(ctx, {.dy = dy, .w = w, .groups = routed.groups, .out = out});
  const auto a = to_matrix(dy), b = to_matrix(w);
  expect_rows(out, cpu::ref::grouped_gemm_dgrad(a, b, routed.segments),
              cpu::ref::grouped_gemm_dgrad(absolute(a), absolute(b), routed.segments), c.n);
}

TEST_P(GroupedGemm, Wgrad) {
  const Tensor dy = rows(c.n, 1), x = rows(c.k, 2);
  const auto a = to_matrix(dy), b = to_matrix(x);
  auto want = cpu::ref::grouped_gemm_wgrad(a, b, routed.segments);
  auto magnitude = cpu::ref::grouped_gemm_wgrad(absolute(a), absolute(b), routed.segments);
  const Tensor out = poisoned(ctx, w.shape(), DType::kF32);
  for (const bool accumulate : {false, true}) {
    const auto before = to_double(out);
    ops::grouped_gemm_wgrad(ctx, {.dy = dy, .x = x, .groups = routed.groups, .out = out, .accumulate = accumulate});
    auto sum = want, size = magnitude;
    for (size_t i = 0; accumulate && i < before.size(); ++i) {
      sum.data[i] += before[i];
      size.data[i] += std::abs(before[i]);
    }
    EXPECT_TRUE(within(out, sum.data, product_bound(size, x.dim(0), c.in, DType::kF32))) << accumulate;
  }
}

INSTANTIATE_TEST_SUITE_P(Routings, GroupedGemm, testing::ValuesIn(cases()));

TEST(GroupedGemmControl, AnOffsetOfOneExpertFails) {
  CpuContext ctx;
  const TestGroups routed(ctx, {5, 20, 9}, 1);
  const Tensor x = random_tensor(ctx, {routed.groups.max_rows(), 32}, DType::kF32, 1),
               w = random_tensor(ctx, {3, 24, 32}, DType::kF32, 2), out = ctx.empty({x.dim(0), 24});
  std::ranges::fill(out.span<float>(), 0.0F);  // pad rows
  ops::grouped_gemm_forward(ctx, {.x = x, .w = w, .groups = routed.groups, .out = out});
  const auto agrees = [&](const cpu::ref::Segments& segments) {
    const auto a = to_matrix(x), b = to_matrix(w);
    const auto magnitude = cpu::ref::grouped_gemm_forward(absolute(a), absolute(b), 24, segments);
    return within(out, cpu::ref::grouped_gemm_forward(a, b, 24, segments).data,
                  product_bound(magnitude, 32, DType::kF32, DType::kF32));
  };
  cpu::ref::Segments shifted = routed.segments;
  ++shifted.counts[0], ++shifted.starts[1], --shifted.counts[1];
  EXPECT_TRUE(agrees(routed.segments));
  EXPECT_FALSE(agrees(shifted));
}

TEST(GroupedGemmBits, EqualDenseProductsForAnyThreads) {
  CpuContext one(1), three(3);
  const TestGroups routed(one, {130, 0, 1, 70}, 8);
  const int64_t rows = routed.groups.max_rows();
  const Tensor x = random_tensor(one, {rows, 96}, DType::kF32, 1), w = random_tensor(one, {4, 300, 96}, DType::kF32, 2);
  const Tensor y = poisoned(one, {rows, 300}, DType::kF32), y3 = poisoned(one, {rows, 300}, DType::kF32);
  ops::grouped_gemm_forward(one, {.x = x, .w = w, .groups = routed.groups, .out = y});
  ops::grouped_gemm_forward(three, {.x = x, .w = w, .groups = routed.groups, .out = y3});
  const Tensor dw = poisoned(one, w.shape(), DType::kF32), dw3 = poisoned(one, w.shape(), DType::kF32);
  ops::grouped_gemm_wgrad(one, {.dy = y, .x = x, .groups = routed.groups, .out = dw});
  ops::grouped_gemm_wgrad(three, {.dy = y, .x = x, .groups = routed.groups, .out = dw3});
  EXPECT_TRUE(same_bits(dw, dw3));
  for (int64_t e = 0; e < 4; ++e) {
    const int64_t start = routed.segments.starts[static_cast<size_t>(e)], count = routed.segments.counts[static_cast<size_t>(e)];
    const Tensor alone = poisoned(one, {count, 300}, DType::kF32);
    ops::matmul_forward(one, {.x = x.rows(start, count), .w = w.rows(e, 1).reshape({300, 96}), .out = alone});
    EXPECT_TRUE(same_bits(y.rows(start, count), alone)) << e;
    EXPECT_TRUE(same_bits(y3.rows(start, count), alone)) << e;
  }
}

TEST(GroupedGemmChecks, ShapesOnMeta) {
  Context ctx = meta_context();
  const ops::Groups groups{.starts = ctx.empty({5}, DType::kI32),
                           .counts = ctx.empty({4}, DType::kI32),
                           .source_row = ctx.empty({40}, DType::kI32),
                           .weight = ctx.empty({40}),
                           .token_rows = ctx.empty({20, 2}, DType::kI32)};
  const Tensor x = ctx.empty({40, 6}), w = ctx.empty({4, 10, 6}), y = ctx.empty({40, 10});
  ops::grouped_gemm_forward(ctx, {.x = x, .w = w, .groups = groups, .out = y});
  ops::grouped_gemm_dgrad(ctx, {.dy = y, .w = w, .groups = groups, .out = x});
  ops::grouped_gemm_wgrad(ctx, {.dy = y, .x = x, .groups = groups, .out = w});
  const Tensor three = ctx.empty({3, 10, 6});
  EXPECT_NE(error_of([&] { ops::grouped_gemm_forward(ctx, {.x = x, .w = three, .groups = groups, .out = y}); }), "");
  EXPECT_NE(error_of([&] { ops::grouped_gemm_dgrad(ctx, {.dy = x, .w = w, .groups = groups, .out = x}); }), "");
  EXPECT_NE(error_of([&] { ops::grouped_gemm_wgrad(ctx, {.dy = y, .x = y, .groups = groups, .out = w}); }), "");
  ops::Groups short_of_one = groups;
  short_of_one.starts = ctx.empty({4}, DType::kI32);
  EXPECT_NE(error_of([&] { ops::grouped_gemm_forward(ctx, {.x = x, .w = w, .groups = short_of_one, .out = y}); }), "");
}

// What a card will refuse, a plan for it refuses.
TEST(GroupedGemmChecks, WidthsOnAPlannedCard) {
  Context ctx = meta_context();
  ctx.planned = Device{DeviceKind::kCuda};
  const ops::Groups groups = ops::empty_groups(ctx, 20, 2, 4);
  const auto run = [&](DType dtype, int64_t n, int64_t k) {
    const Tensor x = ctx.empty({groups.max_rows(), k}, dtype), w = ctx.empty({4, n, k}, dtype),
                 y = ctx.empty({groups.max_rows(), n}, dtype), dw = ctx.empty({4, n, k}, DType::kF32);
    return error_of([&] { ops::grouped_gemm_forward(ctx, {.x = x, .w = w, .groups = groups, .out = y}); }) +
           error_of([&] { ops::grouped_gemm_dgrad(ctx, {.dy = y, .w = w, .groups = groups, .out = x}); }) +
           error_of([&] { ops::grouped_gemm_wgrad(ctx, {.dy = y, .x = x, .groups = groups, .out = dw}); });
  };
  EXPECT_EQ(run(DType::kBF16, 24, 16), "");
  EXPECT_EQ(run(DType::kF32, 20, 6), "");
  EXPECT_THAT(run(DType::kBF16, 20, 16), testing::HasSubstr("multiples of 8"));
  EXPECT_THAT(run(DType::kBF16, 24, 12), testing::HasSubstr("multiples of 8"));
}

}  // namespace
}  // namespace cistron::test
