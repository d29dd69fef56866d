#include "cistron/ops/rms_norm.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "cistron/cpu/ref/rms_norm.h"
#include "cistron/ops/elementwise.h"
#include "tests/ops/support.h"

namespace cistron {
namespace {

using cpu::ref::Matrix;
using test::error_of, test::poisoned, test::random_tensor, test::to_double, test::to_matrix, test::within;
using testing::HasSubstr;

constexpr float kEps = 1e-5F;
constexpr double kU = 0x1p-24;
constexpr DType kFloats[] = {DType::kF32, DType::kBF16};
constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1}, {1, 17}, {200, 80}, {70, 256}, {3, 1000}, {0, 16}};

double output_rounding(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0.0; }

/// Relative error of rstd and a few products: a lane adds H / 16 squares (all positive), four more additions join the lanes;
/// the square root halves it, and at most ten roundings follow.
double relative(int64_t hidden) { return (static_cast<double>(hidden) / 16 / 2 + 14) * kU; }

struct Forward {
  Tensor x, w, out, rstd;
  Forward(Context& ctx, int64_t rows, int64_t hidden, DType dtype, uint64_t seed)
      : x(random_tensor(ctx, {rows, hidden}, dtype, seed, 1.7)),
        w(random_tensor(ctx, {hidden}, DType::kF32, seed + 1)),
        out(poisoned(ctx, {rows, hidden}, dtype)),
        rstd(poisoned(ctx, {rows}, DType::kF32)) {
    ops::rms_norm_forward(ctx, {.x = x, .w = w, .eps = kEps, .out = out, .rstd = rstd});
  }
};

TEST(RmsNorm, Forward) {
  test::CpuContext ctx(2);
  for (const auto& [rows, hidden] : kShapes)
    for (DType dtype : kFloats) {
      const Forward f(ctx, rows, hidden, dtype, 1);
      const auto x = to_matrix(f.x);
      const auto want = cpu::ref::rms_norm_forward(x, to_double(f.w), static_cast<double>(kEps));
      std::vector<double> bound, rstd;
      for (double y : want.data) bound.push_back(std::abs(y) * (relative(hidden) + output_rounding(dtype)) * 1.01);
      for (int64_t t = 0; t < rows; ++t) rstd.push_back(cpu::ref::rms_norm_rstd(x, static_cast<double>(kEps), t));
      EXPECT_TRUE(within(f.out, want.data, bound));
      EXPECT_TRUE(within(f.rstd, rstd, relative(hidden) * (rows > 0 ? *std::max_element(rstd.begin(), rstd.end()) : 0)));
      if (rows == 0) continue;
      const auto other_eps = cpu::ref::rms_norm_forward(x, to_double(f.w), 1.0);  // control
      EXPECT_FALSE(within(f.out, other_eps.data, bound));
    }
}

TEST(RmsNorm, WithTheSumAheadTheSameAsInTwoPasses) {
  test::CpuContext ctx(2);
  for (const auto& [rows, hidden] : kShapes)
    for (DType dtype : kFloats) {
      const Forward f(ctx, rows, hidden, dtype, 1);
      const Tensor a = random_tensor(ctx, f.x.shape(), dtype, 12), b = random_tensor(ctx, f.x.shape(), dtype, 13);
      const Tensor sum = poisoned(ctx, a.shape(), dtype), got = test::copy_of(ctx, a);
      const Tensor out = poisoned(ctx, a.shape(), dtype), rstd = poisoned(ctx, {rows}, DType::kF32);
      ops::add(ctx, {a, b, sum});
      ops::rms_norm_forward(ctx, {.x = sum, .w = f.w, .eps = kEps, .out = f.out, .rstd = f.rstd});
      ops::add_rms_norm_forward(ctx, {.a = got, .b = b, .w = f.w, .eps = kEps, .sum = got, .out = out, .rstd = rstd});
      EXPECT_TRUE(test::same_bits(got, sum));
      EXPECT_TRUE(test::same_bits(out, f.out));
      EXPECT_TRUE(test::same_bits(rstd, f.rstd));
      EXPECT_FALSE(rows > 0 && test::same_bits(got, a));  // control
    }
}

struct Bounds {
  std::vector<double> dx, dw;
};

/// Sums of magnitudes times the relative error of a term and of the summation.
Bounds backward_bounds(const Matrix<double>& dy, const Matrix<double>& x, const std::vector<double>& w, DType dtype,
                       const Matrix<double>& want_dx, const Matrix<double>& before) {
  Bounds bounds{{}, std::vector<double>(w.size(), 0.0)};
  const double summation = static_cast<double>(64 + x.rows / 64 + 3) * kU;
  for (int64_t t = 0; t < x.rows; ++t) {
    const double rstd = cpu::ref::rms_norm_rstd(x, static_cast<double>(kEps), t);
    double mean = 0;
    for (int64_t h = 0; h < x.cols; ++h)
      mean += std::abs(dy(t, h) * w[static_cast<size_t>(h)] * x(t, h)) / static_cast<double>(x.cols);
    for (int64_t h = 0; h < x.cols; ++h) {
      const double size = rstd * (std::abs(dy(t, h) * w[static_cast<size_t>(h)]) + std::abs(x(t, h)) * rstd * rstd * mean);
      bounds.dx.push_back(4 * relative(x.cols) * size + kU * std::abs(before(t, h)) +
                          output_rounding(dtype) * std::abs(want_dx(t, h)) * 1.01);
      bounds.dw[static_cast<size_t>(h)] += std::abs(dy(t, h) * x(t, h) * rstd) * (relative(x.cols) + summation);
    }
  }
  return bounds;
}

TEST(RmsNorm, Backward) {
  test::CpuContext ctx(2);
  for (const auto& [rows, hidden] : kShapes)
    for (DType dtype : kFloats)
      for (bool accumulate : {false, true}) {
        const Forward f(ctx, rows, hidden, dtype, 3);
        const Tensor dy = random_tensor(ctx, {rows, hidden}, dtype, 5);
        const Tensor dx = accumulate ? random_tensor(ctx, f.x.shape(), dtype, 6) : poisoned(ctx, f.x.shape(), dtype);
        const Tensor dw = accumulate ? random_tensor(ctx, f.w.shape(), DType::kF32, 7) : poisoned(ctx, f.w.shape(), DType::kF32);
        auto before = accumulate ? to_matrix(dx) : Matrix<double>(rows, hidden);
        const auto dw_before = accumulate ? to_double(dw) : std::vector<double>(static_cast<size_t>(hidden), 0.0);
        ops::rms_norm_backward(
            ctx, {.dy = dy, .x = f.x, .w = f.w, .rstd = f.rstd, .dx = dx, .accumulate_dx = accumulate, .dw = {dw, accumulate}});
        auto want = cpu::ref::rms_norm_backward(to_matrix(dy), to_matrix(f.x), to_double(f.w), static_cast<double>(kEps));
        for (size_t i = 0; i < want.dx.data.size(); ++i) want.dx.data[i] += before.data[i];
        for (size_t i = 0; i < want.dw.size(); ++i) want.dw[i] += dw_before[i];
        auto bounds = backward_bounds(to_matrix(dy), to_matrix(f.x), to_double(f.w), dtype, want.dx, before);
        for (size_t i = 0; i < want.dw.size(); ++i) bounds.dw[i] += 2 * kU * (std::abs(want.dw[i]) + std::abs(dw_before[i]));
        EXPECT_TRUE(within(dx, want.dx.data, bounds.dx));
        EXPECT_TRUE(within(dw, want.dw, bounds.dw));
        if (rows * hidden < 2) continue;
        // control: without the mean's term
        for (int64_t h = 0; h < hidden; ++h)
          want.dx(0, h) = before(0, h) + to_double(f.rstd)[0] * to_matrix(dy)(0, h) * to_double(f.w)[static_cast<size_t>(h)];
        EXPECT_FALSE(within(dx, want.dx.data, bounds.dx));
        want.dw[0] += 100 * bounds.dw[0];
        EXPECT_FALSE(within(dw, want.dw, bounds.dw));
      }
}

TEST(RmsNorm, ReferenceGradientsAgreeWithFiniteDifferences) {
  test::CpuContext ctx;
  const auto x = to_matrix(random_tensor(ctx, {3, 17}, DType::kF64, 8)),
             dy = to_matrix(random_tensor(ctx, {3, 17}, DType::kF64, 9));
  const auto w = to_double(random_tensor(ctx, {17}, DType::kF64, 10));
  const auto loss = [&](const std::vector<double>& x_values, const std::vector<double>& w_values) {
    const auto y = cpu::ref::rms_norm_forward(Matrix<double>(3, 17, x_values), w_values, 1e-5);
    double sum = 0;
    for (size_t i = 0; i < y.data.size(); ++i) sum += dy.data[i] * y.data[i];
    return sum;
  };
  const auto grads = cpu::ref::rms_norm_backward(dy, x, w, 1e-5);
  const std::vector<double> bound(x.data.size(), 1e-8);  // h^2 of the third derivative, and eps |loss| / h
  EXPECT_TRUE(within(grads.dx.data, test::numeric_gradient([&](auto& v) { return loss(v, w); }, x.data), bound));
  EXPECT_TRUE(
      within(grads.dw, test::numeric_gradient([&](auto& v) { return loss(x.data, v); }, w), std::vector<double>(17, 1e-8)));
}

TEST(RmsNorm, SameBitsForAnyThreadsAndBesideOtherRows) {
  const auto run = [](Context& ctx) {
    const Forward f(ctx, 700, 80, DType::kF32, 11);
    const Tensor dx = poisoned(ctx, f.x.shape(), DType::kF32), dw = poisoned(ctx, f.w.shape(), DType::kF32);
    ops::rms_norm_backward(ctx, {.dy = f.out, .x = f.x, .w = f.w, .rstd = f.rstd, .dx = dx, .dw = {dw}});
    return std::vector{f.out, f.rstd, dx, dw};
  };
  EXPECT_TRUE(test::same_for_any_threads(run));
  test::CpuContext ctx(2);
  const Forward all(ctx, 700, 80, DType::kF32, 11);
  const Tensor x = all.x.rows(333, 1), out = poisoned(ctx, {1, 80}, DType::kF32), rstd = poisoned(ctx, {1}, DType::kF32);
  ops::rms_norm_forward(ctx, {.x = x, .w = all.w, .eps = kEps, .out = out, .rstd = rstd});
  EXPECT_TRUE(test::same_bits(out, all.out.rows(333, 1)));
}

TEST(RmsNorm, ChecksShapesAlsoOnMeta) {
  Context ctx = test::meta_context();
  const Tensor x = ctx.empty({6, 8}, DType::kF32), w = ctx.empty({8}, DType::kF32), rstd = ctx.empty({6}, DType::kF32);
  const Tensor half = ctx.empty({6, 8}, DType::kBF16);
  ops::rms_norm_forward(ctx, {.x = x, .w = w, .out = x, .rstd = rstd});
  ops::add_rms_norm_forward(ctx, {.a = x, .b = x, .w = w, .sum = x, .out = x, .rstd = rstd});
  ops::rms_norm_backward(ctx, {.dy = x, .x = x, .w = w, .rstd = rstd, .dx = x, .dw = {w}});
  EXPECT_THAT(error_of([&] { ops::add_rms_norm_forward(ctx, {.a = x, .b = half, .w = w, .sum = x, .out = x, .rstd = rstd}); }),
              HasSubstr("[add_rms_norm_forward] b"));
  EXPECT_THAT(error_of([&] { ops::rms_norm_forward(ctx, {.x = x, .w = rstd, .out = x, .rstd = rstd}); }),
              HasSubstr("[rms_norm_forward] w"));
  EXPECT_THAT(error_of([&] { ops::rms_norm_forward(ctx, {.x = x, .w = w, .out = half, .rstd = rstd}); }),
              HasSubstr("[rms_norm_forward] out"));
  EXPECT_THAT(error_of([&] { ops::rms_norm_backward(ctx, {.dy = half, .x = x, .w = w, .rstd = rstd, .dx = x, .dw = {w}}); }),
              HasSubstr("[rms_norm_backward] dy"));
  EXPECT_THAT(error_of([&] { ops::rms_norm_backward(ctx, {.dy = x, .x = x, .w = w, .rstd = rstd, .dx = x, .dw = {rstd}}); }),
              HasSubstr("[rms_norm_backward] dw"));
}

}  // namespace
}  // namespace cistron
