#include "cistron/ops/rms_norm.h"

#include <algorithm>

#include "cistron/cpu/ref/rms_norm.h"
#include "cistron/ops/elementwise.h"
#include "tests/cuda/support.h"

namespace cistron::test {
namespace {

using cpu::ref::Matrix;

constexpr float kEps = 1e-5F;
constexpr double kU = 0x1p-24;
constexpr DType kFloats[] = {DType::kF32, DType::kBF16};
// Rows of one element, of no whole chunks, of one warp, of a block, of more than the registers hold; more rows than groups.
constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},    {1, 17},   {200, 80},   {70, 256},  {3, 1000},   {0, 16},
                                                   {9, 2048}, {5, 4096}, {40, 10240}, {3, 20480}, {3000, 104}, {13, 1003}};

double output_rounding(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 0.0; }

/// Relative error of rstd and a few products: a thread of a warp or more adds at most H / 32 squares (all positive), 13 more
/// additions join the threads; the square root halves it, and at most ten roundings follow.
double relative(int64_t hidden) { return (static_cast<double>(hidden) / 32 / 2 + 17) * kU; }

class CudaRmsNorm : public OnCard {
 protected:
  struct Operands {
    Tensor x, w;
  };
  Operands operands(int64_t rows, int64_t hidden, DType dtype, uint64_t seed) {
    return {random_tensor(cpu_, {rows, hidden}, dtype, seed, 1.7), random_tensor(cpu_, {hidden}, DType::kF32, seed + 1)};
  }
};

TEST_F(CudaRmsNorm, Forward) {
  for (const auto& [rows, hidden] : kShapes)
    for (DType dtype : kFloats) {
      const auto [x, w] = operands(rows, hidden, dtype, 1);
      const auto results = twice([&] {
        const Tensor out = poisoned_there(x.shape(), dtype), rstd = poisoned_there({x.dim(0)}, DType::kF32);
        ops::rms_norm_forward(cuda_, {.x = device(x), .w = device(w), .eps = kEps, .out = out, .rstd = rstd});
        return std::vector{out, rstd};
      });
      const auto exact = to_matrix(x);
      const auto want = cpu::ref::rms_norm_forward(exact, to_double(w), static_cast<double>(kEps));
      std::vector<double> bound, rstd;
      for (double y : want.data) bound.push_back(std::abs(y) * (relative(hidden) + output_rounding(dtype)) * 1.01);
      for (int64_t t = 0; t < rows; ++t) rstd.push_back(cpu::ref::rms_norm_rstd(exact, static_cast<double>(kEps), t));
      EXPECT_TRUE(within(results[0], want.data, bound)) << rows << " x " << hidden;
      EXPECT_TRUE(within(results[1], rstd, relative(hidden) * (rows > 0 ? *std::max_element(rstd.begin(), rstd.end()) : 0)));
      if (rows == 0) continue;
      EXPECT_FALSE(within(results[0], cpu::ref::rms_norm_forward(exact, to_double(w), 1.0).data, bound));  // control
    }
}

TEST_F(CudaRmsNorm, WithTheSumAheadTheSameAsInTwoPasses) {
  for (const auto& [rows, hidden] : kShapes)
    for (DType dtype : kFloats) {
      const auto [x, w] = operands(rows, hidden, dtype, 1);
      const Tensor added = random_tensor(cpu_, x.shape(), dtype, 9), sum = poisoned(cpu_, x.shape(), dtype);
      ops::add(cpu_, {x, added, sum});
      const Tensor out = poisoned_there(x.shape(), dtype), rstd = poisoned_there({x.dim(0)}, DType::kF32);
      ops::rms_norm_forward(cuda_, {.x = device(sum), .w = device(w), .eps = kEps, .out = out, .rstd = rstd});
      const auto results = twice([&] {
        const Tensor got = device(x), y = poisoned_there(x.shape(), dtype), scale = poisoned_there({x.dim(0)}, DType::kF32);
        ops::add_rms_norm_forward(
            cuda_, {.a = got, .b = device(added), .w = device(w), .eps = kEps, .sum = got, .out = y, .rstd = scale});
        return std::vector{got, y, scale};
      });
      EXPECT_TRUE(same_bits(results[0], sum));
      EXPECT_TRUE(same_bits(results[1], host(out)));
      EXPECT_TRUE(same_bits(results[2], host(rstd)));
      EXPECT_FALSE(rows > 0 && same_bits(results[0], x));  // control
    }
}

TEST_F(CudaRmsNorm, Backward) {
  for (const auto& [rows, hidden] : kShapes)
    for (DType dtype : kFloats)
      for (bool accumulate : {false, true}) {
        const auto [x, w] = operands(rows, hidden, dtype, 3);
        const Tensor dy = random_tensor(cpu_, x.shape(), dtype, 5), rstd = poisoned(cpu_, {rows}, DType::kF32);
        const Tensor y = poisoned(cpu_, x.shape(), dtype);
        ops::rms_norm_forward(cpu_, {.x = x, .w = w, .eps = kEps, .out = y, .rstd = rstd});
        const Tensor dx0 = accumulate ? random_tensor(cpu_, x.shape(), dtype, 6) : poisoned(cpu_, x.shape(), dtype);
        const Tensor dw0 = accumulate ? random_tensor(cpu_, w.shape(), DType::kF32, 7) : poisoned(cpu_, w.shape(), DType::kF32);
        const auto results = twice([&] {
          const Tensor dx = device(dx0), dw = device(dw0);
          ops::rms_norm_backward(cuda_, {.dy = device(dy),
                                         .x = device(x),
                                         .w = device(w),
                                         .rstd = device(rstd),
                                         .dx = dx,
                                         .accumulate_dx = accumulate,
                                         .dw = {dw, accumulate}});
          return std::vector{dx, dw};
        });
        const auto exact = to_matrix(x), upstream = to_matrix(dy);
        const auto weight = to_double(w), dw_before = accumulate ? to_double(dw0) : std::vector<double>(weight.size(), 0.0);
        const auto before = accumulate ? to_matrix(dx0) : Matrix<double>(rows, hidden);
        auto want = cpu::ref::rms_norm_backward(upstream, exact, weight, static_cast<double>(kEps));
        std::vector<double> dx_bound, dw_bound;
        for (size_t h = 0; h < weight.size(); ++h) {
          want.dw[h] += dw_before[h];
          dw_bound.push_back(2 * kU * (std::abs(want.dw[h]) + std::abs(dw_before[h])));
        }
        for (int64_t t = 0; t < rows; ++t) {
          const double r = cpu::ref::rms_norm_rstd(exact, static_cast<double>(kEps), t);
          double mean = 0;
          for (int64_t h = 0; h < hidden; ++h)
            mean += std::abs(upstream(t, h) * weight[static_cast<size_t>(h)] * exact(t, h)) / static_cast<double>(hidden);
          for (int64_t h = 0; h < hidden; ++h) {
            want.dx(t, h) += before(t, h);
            const double size =
                r * (std::abs(upstream(t, h) * weight[static_cast<size_t>(h)]) + std::abs(exact(t, h)) * r * r * mean);
            dx_bound.push_back(4 * relative(hidden) * size + kU * std::abs(before(t, h)) +
                               output_rounding(dtype) * std::abs(want.dx(t, h)) * 1.01);
            // at most eight rows in a group while there are groups to have, then all groups' sums, 32 at a time
            dw_bound[static_cast<size_t>(h)] +=
                std::abs(upstream(t, h) * exact(t, h) * r) * (relative(hidden) + (static_cast<double>(rows) / 8 + 48) * kU);
          }
        }
        EXPECT_TRUE(within(results[0], want.dx.data, dx_bound)) << rows << " x " << hidden;
        EXPECT_TRUE(within(results[1], want.dw, dw_bound)) << rows << " x " << hidden;
        if (rows * hidden < 2) continue;
        // controls: without the mean's term; dw without a row
        for (int64_t h = 0; h < hidden; ++h)
          want.dx(0, h) = before(0, h) + to_double(rstd)[0] * upstream(0, h) * weight[static_cast<size_t>(h)];
        EXPECT_FALSE(within(results[0], want.dx.data, dx_bound));
        for (int64_t h = 0; h < hidden; ++h)
          want.dw[static_cast<size_t>(h)] -=
              upstream(rows - 1, h) * exact(rows - 1, h) * to_double(rstd)[static_cast<size_t>(rows - 1)];
        EXPECT_FALSE(within(results[1], want.dw, dw_bound));
      }
}

}  // namespace
}  // namespace cistron::test
