#include "cistron/ops/swiglu.h"

#include <gmock/gmock.h>

#include "cistron/cpu/ref/swiglu.h"
#include "tests/ops/routing_support.h"

namespace cistron {
namespace {

using cpu::ref::Matrix;
using test::error_of, test::poisoned, test::random_tensor, test::to_double, test::to_matrix, test::within;
using testing::HasSubstr;

constexpr double kU = 0x1p-24;
constexpr DType kFloats[] = {DType::kF32, DType::kBF16};

double output_rounding(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0.0; }

/// Operands of routed rows with poison wherever nobody may look, and the same for the reference, cut at the end.
struct Operands {
  ops::Groups groups;
  Tensor gate_up, dy;
  std::vector<int32_t> source_row;
  Matrix<double> g, d;
  std::vector<double> w;

  Operands(const Context& ctx, const test::RoutingCase& c, int64_t width, DType dtype)
      : groups(test::groups_of(ctx, c, 1)),
        gate_up(random_tensor(ctx, {groups.max_rows(), 2 * width}, dtype, 2, 3.0)),
        dy(random_tensor(ctx, {groups.max_rows(), width}, dtype, 3)),
        source_row(test::used_source_rows(groups)) {
    test::poison_unused_rows(gate_up, groups);
    test::poison_unused_rows(dy, groups);
    g = to_matrix(gate_up.rows(0, used()));
    d = to_matrix(dy.rows(0, used()));
    w = to_double(groups.weight.rows(0, used()));
  }
  [[nodiscard]] int64_t used() const { return static_cast<int64_t>(source_row.size()); }
};

TEST(ScaledSwiglu, Forward) {
  test::CpuContext ctx(2);
  for (const auto& c : test::routing_cases())
    for (DType dtype : kFloats)
      for (int64_t width : {1, 17, 80, 256}) {
        const Operands in(ctx, c, width, dtype);
        const Tensor out = poisoned(ctx, in.dy.shape(), dtype);
        ops::scaled_swiglu_forward(ctx, {in.gate_up, in.groups, out});
        auto want = cpu::ref::scaled_swiglu_forward(in.g, in.w, in.source_row);
        // exp to 4 u, sum, quotient, three products
        std::vector<double> bound;
        for (double y : want.data) bound.push_back(std::abs(y) * (9 * kU + output_rounding(dtype)) * 1.01);
        EXPECT_TRUE(within(out.rows(0, in.used()), want.data, bound));
        for (double v : to_double(out.rows(in.used(), out.dim(0) - in.used()))) EXPECT_TRUE(std::isnan(v));
        want(0, 0) /= in.w[0];  // control: a row without its weight
        EXPECT_FALSE(within(out.rows(0, in.used()), want.data, bound));
      }
}

TEST(ScaledSwiglu, Backward) {
  test::CpuContext ctx(2);
  for (const auto& c : test::routing_cases())
    for (DType dtype : kFloats)
      for (int64_t width : {1, 17, 80, 256}) {
        const Operands in(ctx, c, width, dtype);
        const Tensor dgate_up = poisoned(ctx, in.gate_up.shape(), dtype),
                     dweight = poisoned(ctx, in.groups.weight.shape(), DType::kF32);
        ops::scaled_swiglu_backward(ctx, {in.dy, in.gate_up, in.groups, dgate_up, dweight});
        auto want = cpu::ref::scaled_swiglu_backward(in.d, in.g, in.w, in.source_row);
        Matrix<double> bound(in.used(), 2 * width);
        std::vector<double> dweight_bound(in.w.size(), 0.0);
        for (int64_t r = 0; r < in.used(); ++r) {
          if (in.source_row[static_cast<size_t>(r)] < 0) continue;
          for (int64_t f = 0; f < width; ++f) {
            const double g = in.g(r, f), u = in.g(r, width + f), dy = in.d(r, f), sig = cpu::ref::sigmoid(g);
            const double w = in.w[static_cast<size_t>(r)];
            // 1 - sigmoid errs by 7 u, absolutely; times g, plus 1, times four factors
            bound(r, f) = 18 * kU * std::abs(dy * w * u) * sig * (1 + std::abs(g)) +
                          output_rounding(dtype) * std::abs(want.dgate_up(r, f)) * 1.01;
            bound(r, width + f) = std::abs(want.dgate_up(r, width + f)) * (9 * kU + output_rounding(dtype)) * 1.01;
            dweight_bound[static_cast<size_t>(r)] += (static_cast<double>(width) / 16 + 15) * kU * std::abs(dy * g * sig * u);
          }
        }
        EXPECT_TRUE(within(dgate_up.rows(0, in.used()), want.dgate_up.data, bound.data));
        EXPECT_TRUE(within(dweight.rows(0, in.used()), want.dweight, dweight_bound));
        for (double v : to_double(dweight.rows(in.used(), dweight.dim(0) - in.used()))) EXPECT_TRUE(std::isnan(v));
        // controls: silu's derivative without its second term, dweight with the weight in it
        want.dgate_up(0, 0) = in.d(0, 0) * in.w[0] * in.g(0, width) * cpu::ref::sigmoid(in.g(0, 0));
        want.dweight[0] *= in.w[0];
        EXPECT_FALSE(within(dgate_up.rows(0, in.used()), want.dgate_up.data, bound.data));
        EXPECT_FALSE(within(dweight.rows(0, in.used()), want.dweight, dweight_bound));
      }
}

TEST(ScaledSwiglu, ReferenceGradientsAgreeWithFiniteDifferences) {
  test::CpuContext ctx;
  const std::vector<int32_t> source{2, -1, 0};
  const auto g = to_matrix(random_tensor(ctx, {3, 10}, DType::kF64, 4)),
             dy = to_matrix(random_tensor(ctx, {3, 5}, DType::kF64, 5));
  const std::vector<double> w{0.3, 0.0, -1.2};
  const auto loss = [&](const std::vector<double>& gate_up, const std::vector<double>& weight) {
    const auto y = cpu::ref::scaled_swiglu_forward(Matrix<double>(3, 10, gate_up), weight, source);
    double sum = 0;
    for (size_t i = 0; i < y.data.size(); ++i) sum += dy.data[i] * y.data[i];
    return sum;
  };
  const auto grads = cpu::ref::scaled_swiglu_backward(dy, g, w, source);
  EXPECT_TRUE(within(grads.dgate_up.data, test::numeric_gradient([&](auto& v) { return loss(v, w); }, g.data),
                     std::vector<double>(30, 1e-8)));
  EXPECT_TRUE(
      within(grads.dweight, test::numeric_gradient([&](auto& v) { return loss(g.data, v); }, w), std::vector<double>(3, 1e-8)));
}

TEST(ScaledSwiglu, LargeGatesNeitherOverflowNorLoseTheirSign) {
  test::CpuContext ctx;
  const Tensor experts = test::tensor_of(ctx, {1, 1}, DType::kI32, {0}), weight = test::tensor_of(ctx, {1, 1}, DType::kF32, {1});
  const ops::Groups groups = test::make_groups(ctx, experts, 1, weight, 1, 0);
  const Tensor gate_up = test::tensor_of(ctx, {1, 8}, DType::kF32, {-1000, -95, 95, 1000, 1, 1, 1, 1});
  const Tensor y = poisoned(ctx, {1, 4}, DType::kF32), dgate_up = poisoned(ctx, {1, 8}, DType::kF32);
  const Tensor dy = test::tensor_of(ctx, {1, 4}, DType::kF32, {1, 1, 1, 1}), dweight = poisoned(ctx, {1}, DType::kF32);
  ops::scaled_swiglu_forward(ctx, {gate_up, groups, y});
  ops::scaled_swiglu_backward(ctx, {dy, gate_up, groups, dgate_up, dweight});
  EXPECT_TRUE(within(y, {0, 0, 95, 1000}, 1e-36));
  EXPECT_TRUE(within(dgate_up, {0, 0, 1, 1, 0, 0, 95, 1000}, 1e-36));
}

TEST(ScaledSwiglu, SameBitsForAnyThreads) {
  EXPECT_TRUE(test::same_for_any_threads([](Context& ctx) {
    const Operands in(ctx, {300, 2, 8, test::Choice::kRandom, 8}, 200, DType::kF32);
    const Tensor out = poisoned(ctx, in.dy.shape(), DType::kF32), dgate_up = poisoned(ctx, in.gate_up.shape(), DType::kF32);
    const Tensor dweight = poisoned(ctx, in.groups.weight.shape(), DType::kF32);
    ops::scaled_swiglu_forward(ctx, {in.gate_up, in.groups, out});
    ops::scaled_swiglu_backward(ctx, {in.dy, in.gate_up, in.groups, dgate_up, dweight});
    return std::vector{out.rows(0, in.used()), dgate_up.rows(0, in.used()), dweight.rows(0, in.used())};
  }));
}

TEST(ScaledSwiglu, ChecksShapesAlsoOnMeta) {
  Context ctx = test::meta_context();
  const ops::Groups groups = ops::empty_groups(ctx, 6, 2, 4);
  const Tensor y = ctx.empty({12, 8}, DType::kF32), gate_up = ctx.empty({12, 16}, DType::kF32),
               dweight = ctx.empty({12}, DType::kF32);
  ops::scaled_swiglu_forward(ctx, {gate_up, groups, y});
  ops::scaled_swiglu_backward(ctx, {y, gate_up, groups, gate_up, dweight});
  EXPECT_THAT(error_of([&] { ops::scaled_swiglu_forward(ctx, {y, groups, y}); }), HasSubstr("[scaled_swiglu_forward] gate_up"));
  EXPECT_THAT(error_of([&] { ops::scaled_swiglu_backward(ctx, {y, gate_up, groups, y, dweight}); }),
              HasSubstr("[scaled_swiglu_backward] dgate_up"));
  EXPECT_THAT(error_of([&] { ops::scaled_swiglu_backward(ctx, {y, gate_up, groups, gate_up, groups.counts}); }),
              HasSubstr("[scaled_swiglu_backward] dweight"));
}

}  // namespace
}  // namespace cistron
