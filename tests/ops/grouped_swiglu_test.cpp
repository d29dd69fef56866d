#include "cistron/ops/grouped_swiglu.h"

#include <gmock/gmock.h>

#include "cistron/cpu/ref/grouped_gemm.h"
#include "cistron/cpu/ref/swiglu.h"
#include "tests/ops/product_bounds.h"
#include "tests/ops/routing_support.h"

namespace cistron {
namespace {

using cpu::ref::Matrix;
using test::error_of, test::poisoned, test::random_tensor, test::to_double, test::to_matrix, test::within;
using testing::HasSubstr;

constexpr double kU = 0x1p-24;
constexpr int64_t kHidden = 48;

double output_rounding(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0.0; }

/// a [R, K] times each row's expert's b (n, k), or b (k, n) where `across`; `absolute` of both for bounds.
Matrix<double> product(const Tensor& a, const Tensor& w, const ops::Groups& groups, bool across, bool absolute) {
  const auto source = test::used_source_rows(groups);
  const auto starts = test::ints(groups.starts);
  const int64_t n = across ? w.dim(2) : w.dim(1), k = across ? w.dim(1) : w.dim(2);
  const auto av = to_double(a), wv = to_double(w);
  Matrix<double> out(static_cast<int64_t>(source.size()), n);
  for (int64_t e = 0; e < groups.num_experts(); ++e)
    for (int64_t r = starts[static_cast<size_t>(e)]; r < starts[static_cast<size_t>(e) + 1]; ++r)
      for (int64_t j = 0; source[static_cast<size_t>(r)] >= 0 && j < n; ++j)
        for (int64_t i = 0; i < k; ++i) {
          const double term = av[static_cast<size_t>(r * k + i)] *
                              wv[static_cast<size_t>(e * n * k + (across ? i * n + j : j * k + i))];
          out(r, j) += absolute ? std::abs(term) : term;
        }
  return out;
}

struct Case {
  ops::Groups groups;
  Tensor x, w;  // [R, H]; [E, 2F, H] forward, [E, H, F] backward
  std::vector<int32_t> source;
  std::vector<double> weight;

  Case(const Context& ctx, const test::RoutingCase& c, const Shape& w_shape, DType dtype)
      : groups(test::groups_of(ctx, c, 1)),
        x(random_tensor(ctx, {groups.max_rows(), kHidden}, dtype, 2)),
        w(random_tensor(ctx, w_shape, dtype, 3, 0.3)),
        source(test::used_source_rows(groups)),
        weight(to_double(groups.weight.rows(0, used()))) {
    test::poison_unused_rows(x, groups);
  }
  [[nodiscard]] int64_t used() const { return static_cast<int64_t>(source.size()); }
};

/// Rows with a source.
void keep_used(Matrix<double>& m, const std::vector<int32_t>& source) {
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t c = 0; source[static_cast<size_t>(r)] < 0 && c < m.cols; ++c) m(r, c) = 0;
}

TEST(GroupedSwiglu, Forward) {
  test::CpuContext ctx(2);
  for (const auto& c : test::routing_cases())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int64_t width : {17, 290}) {
        const Case in(ctx, c, {c.experts, 2 * width, kHidden}, dtype);
        const Tensor gate_up = poisoned(ctx, {in.groups.max_rows(), 2 * width}, dtype);
        const Tensor act = poisoned(ctx, {in.groups.max_rows(), width}, dtype);
        ops::grouped_swiglu_forward(ctx, {in.x, in.w, in.groups, gate_up, act});
        auto g = to_matrix(gate_up.rows(0, in.used()));
        keep_used(g, in.source);
        const auto want = product(in.x, in.w, in.groups, false, false);
        const auto bound = test::product_bound(product(in.x, in.w, in.groups, false, true), kHidden, dtype, dtype);
        EXPECT_TRUE(within(g.data, want.data, bound));
        auto y = cpu::ref::scaled_swiglu_forward(g, in.weight, in.source);  // of what was stored
        std::vector<double> y_bound;
        for (double v : y.data) y_bound.push_back(std::abs(v) * (9 * kU + output_rounding(dtype)) * 1.01);
        EXPECT_TRUE(within(act.rows(0, in.used()), y.data, y_bound));
        y(0, 0) *= 1.02;  // control
        EXPECT_FALSE(within(act.rows(0, in.used()), y.data, y_bound));
      }
}

TEST(GroupedSwiglu, Backward) {
  test::CpuContext ctx(2);
  for (const auto& c : test::routing_cases())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int64_t width : {17, 290}) {
        const Case in(ctx, c, {c.experts, kHidden, width}, dtype);
        const Shape wide{in.groups.max_rows(), 2 * width}, narrow{in.groups.max_rows(), width};
        const Tensor gate_up = random_tensor(ctx, wide, dtype, 4, 3.0);
        test::poison_unused_rows(gate_up, in.groups);
        const Tensor dgate_up = poisoned(ctx, wide, dtype), act = poisoned(ctx, narrow, dtype);
        const Tensor dweight = poisoned(ctx, {in.groups.max_rows()}, DType::kF32);
        ops::grouped_swiglu_backward(ctx, {in.x, in.w, gate_up, in.groups, dgate_up, act, dweight});
        const auto g = to_matrix(gate_up.rows(0, in.used()));
        const auto d = product(in.x, in.w, in.groups, true, false);
        const auto d_bound = test::product_bound(product(in.x, in.w, in.groups, true, true), kHidden, dtype, dtype);
        auto want = cpu::ref::scaled_swiglu_backward(d, g, in.weight, in.source);
        Matrix<double> bound(in.used(), 2 * width);
        std::vector<double> dweight_bound(in.weight.size(), 0.0);
        for (int64_t r = 0; r < in.used(); ++r)
          for (int64_t f = 0; in.source[static_cast<size_t>(r)] >= 0 && f < width; ++f) {
            const double sig = cpu::ref::sigmoid(g(r, f)), u = g(r, width + f), w = in.weight[static_cast<size_t>(r)];
            const double error = d_bound[static_cast<size_t>(r * width + f)];
            const double slope = std::abs(sig * (1 + g(r, f) * (1 - sig)));
            bound(r, f) = error * std::abs(w * u) * slope + 18 * kU * std::abs(d(r, f) * w * u) * sig * (1 + std::abs(g(r, f))) +
                          1.01 * output_rounding(dtype) * (std::abs(want.dgate_up(r, f)) + error * std::abs(w * u) * slope);
            const double silu = std::abs(w * g(r, f) * sig);
            bound(r, width + f) = (error * silu + std::abs(want.dgate_up(r, width + f)) * 9 * kU) +
                                  1.01 * output_rounding(dtype) * (std::abs(want.dgate_up(r, width + f)) + error * silu);
            const double term = std::abs(g(r, f) * sig * u);
            dweight_bound[static_cast<size_t>(r)] +=
                error * term + (static_cast<double>(width) / 16 + 18) * kU * (std::abs(d(r, f)) + error) * term;
          }
        EXPECT_TRUE(within(dgate_up.rows(0, in.used()), want.dgate_up.data, bound.data));
        EXPECT_TRUE(within(dweight.rows(0, in.used()), want.dweight, dweight_bound));
        const auto y = cpu::ref::scaled_swiglu_forward(g, in.weight, in.source);
        std::vector<double> y_bound;
        for (double v : y.data) y_bound.push_back(std::abs(v) * (9 * kU + output_rounding(dtype)) * 1.01);
        EXPECT_TRUE(within(act.rows(0, in.used()), y.data, y_bound));
        if (dtype == DType::kBF16) continue;  // controls: a bf16 sum of few terms may be all rounding
        for (double& v : want.dgate_up.data) v *= 1.05;
        for (double& v : want.dweight) v *= 1.5;
        EXPECT_FALSE(within(dgate_up.rows(0, in.used()), want.dgate_up.data, bound.data));
        EXPECT_FALSE(within(dweight.rows(0, in.used()), want.dweight, dweight_bound));
      }
}

TEST(GroupedSwiglu, SameBitsForAnyThreads) {
  EXPECT_TRUE(test::same_for_any_threads([](Context& ctx) {
    const test::RoutingCase c{300, 2, 8, test::Choice::kRandom, 8};
    const Case in(ctx, c, {8, kHidden, 300}, DType::kF32);
    const Tensor gate_up = random_tensor(ctx, {in.groups.max_rows(), 600}, DType::kF32, 4);
    const Tensor dgate_up = poisoned(ctx, gate_up.shape(), DType::kF32), act = poisoned(ctx, {gate_up.dim(0), 300}, DType::kF32);
    const Tensor dweight = poisoned(ctx, {gate_up.dim(0)}, DType::kF32);
    ops::grouped_swiglu_backward(ctx, {in.x, in.w, gate_up, in.groups, dgate_up, act, dweight});
    return std::vector{dgate_up.rows(0, in.used()), act.rows(0, in.used()), dweight.rows(0, in.used())};
  }));
}

TEST(GroupedSwiglu, ChecksShapesAlsoOnMeta) {
  Context ctx = test::meta_context();
  const ops::Groups groups = ops::empty_groups(ctx, 6, 2, 4);
  const Tensor x = ctx.empty({12, 8}), w = ctx.empty({4, 32, 8}), gate_up = ctx.empty({12, 32}), act = ctx.empty({12, 16});
  ops::grouped_swiglu_forward(ctx, {x, w, groups, gate_up, act});
  EXPECT_THAT(error_of([&] { ops::grouped_swiglu_forward(ctx, {x, w, groups, act, act}); }),
              HasSubstr("[grouped_swiglu_forward] gate_up"));
  EXPECT_THAT(error_of([&] { ops::grouped_swiglu_backward(ctx, {x, w, gate_up, groups, gate_up, act, act}); }),
              HasSubstr("[grouped_swiglu_backward] w"));
}

}  // namespace
}  // namespace cistron
