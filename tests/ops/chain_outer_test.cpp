#include "cistron/cpu/fast/chain_outer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cistron/core/rng.h"
#include "cistron/cpu/fast/words.h"

namespace cistron::cpu {
namespace {

constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int64_t rows, n, k;
};

std::vector<bf16> random(int64_t count, uint64_t seed) {
  const Rng rng(seed, 0);
  std::vector<bf16> values;
  for (int64_t i = 0; i < count; ++i) values.emplace_back(static_cast<float>(rng.uniform(static_cast<uint64_t>(i))) - 0.4F);
  return values;
}

// Between columns that are not its own: two before, three behind.
struct Operands {
  Case shape;
  int64_t lddy = shape.n + 5, ldx = shape.k + 5, lddw = shape.k + 5;
  std::vector<bf16> dy = random(shape.rows * lddy + 2, 1), x = random(shape.rows * ldx + 2, 2);

  std::vector<float> run(float before, bool accumulate) const {
    std::vector<float> dw(static_cast<size_t>(shape.n * lddw + 2), kPoison);
    for (int64_t i = 0; i < shape.n && accumulate; ++i) std::fill_n(dw.begin() + i * lddw + 2, shape.k, before);
    chain_outer({dy.data() + 2, x.data() + 2, dw.data() + 2, shape.rows, shape.n, shape.k, lddy, ldx, lddw, accumulate});
    return dw;
  }

  // The sum over rows [0, rows) and that of the magnitudes.
  std::pair<double, double> sums(int64_t i, int64_t j, int64_t rows) const {
    double sum = 0, magnitude = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const auto a = static_cast<float>(dy[static_cast<size_t>(r * lddy + 2 + i)]),
                 b = static_cast<float>(x[static_cast<size_t>(r * ldx + 2 + j)]);
      sum += static_cast<double>(a) * b;
      magnitude += std::abs(static_cast<double>(a) * b);
    }
    return {sum, magnitude};
  }

  // A chain of rows + 2 rounded additions, each at most 2^-24 of the magnitudes' sum (twice that, for vdpbf16ps may round twice).
  bool matches(const std::vector<float>& dw, double before, int64_t rows) const {
    for (int64_t i = 0; i < shape.n; ++i)
      for (int64_t j = 0; j < shape.k; ++j) {
        const auto [sum, magnitude] = sums(i, j, rows);
        const double bound = static_cast<double>(shape.rows + 2) * 0x1p-23 * (magnitude + std::abs(before));
        if (!(std::abs(dw[static_cast<size_t>(i * lddw + 2 + j)] - (before + sum)) <= bound)) return false;
      }
    return true;
  }

  bool untouched_beside(const std::vector<float>& dw) const {
    for (size_t i = 0; i < dw.size(); ++i) {
      const int64_t column = (static_cast<int64_t>(i) + lddw - 2) % lddw;
      if ((i < 2 || column >= shape.k) && !std::isnan(dw[i])) return false;
    }
    return true;
  }
};

TEST(ChainOuter, IsTheSumOverAnyNumberOfRows) {
  if constexpr (!kHasBf16Words) GTEST_SKIP() << "this build multiplies no bf16";
  for (const Case& shape : {Case{0, 3, 5}, Case{1, 16, 16}, Case{2, 1, 1}, Case{17, 33, 15}, Case{576, 16, 32}, Case{577, 20, 17},
                            Case{1153, 16, 16}}) {
    const Operands operands{shape};
    for (const bool accumulate : {false, true}) {
      const auto dw = operands.run(0.25F, accumulate);
      EXPECT_TRUE(operands.matches(dw, accumulate ? 0.25 : 0.0, shape.rows)) << shape.rows;
      EXPECT_TRUE(operands.untouched_beside(dw));
      const bool matches_less = operands.matches(dw, accumulate ? 0.25 : 0.0, std::max<int64_t>(0, shape.rows - 1));
      EXPECT_EQ(matches_less, shape.rows == 0) << shape.rows;  // control
    }
  }
}

// A tile's bits do not depend on what else is computed with it.
TEST(ChainOuter, AnElementDependsOnItsColumnsAlone) {
  if constexpr (!kHasBf16Words) GTEST_SKIP() << "this build multiplies no bf16";
  const Operands all{{.rows = 601, .n = 40, .k = 40}};
  const auto whole = all.run(0, false);
  float one = kPoison;
  chain_outer({all.dy.data() + 2 + 37, all.x.data() + 2 + 20, &one, 601, 1, 1, all.lddy, all.ldx, 1, false});
  EXPECT_EQ(one, whole[static_cast<size_t>(37 * all.lddw + 2 + 20)]);
}

}  // namespace
}  // namespace cistron::cpu
