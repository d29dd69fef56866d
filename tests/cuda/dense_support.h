#pragma once
// Dense products on the card against float64: sizes that tensor cores take and that they do not, and what a result is held to.
#include "cistron/cpu/ref/matmul.h"
#include "tests/cuda/support.h"
#include "tests/ops/product_bounds.h"

namespace cistron::test {

struct DenseCase {
  int64_t m, n, k;
  DType in = DType::kF32, out = DType::kF32;
  bool accumulate = false;
};

inline void PrintTo(const DenseCase& c, std::ostream* os) {
  *os << fmt::format("{}x{}x{} {} to {}{}", c.m, c.n, c.k, name_of(c.in), name_of(c.out), c.accumulate ? ", added" : "");
}

inline std::vector<DenseCase> dense_cases() {
  std::vector<DenseCase> all;
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1},
                                {1, 33, 256},
                                {3, 80, 20},
                                {257, 33, 129},
                                {130, 304, 72},
                                {300, 8, 1024},   // a router
                                {2500, 64, 48},   // its wgrad is cut into parts
                                {129, 512, 264},  // whole pieces, odd tiles
                                {520, 136, 1000}})
    for (const auto& [in, out] : {std::pair{DType::kF32, DType::kF32}, {DType::kBF16, DType::kF32}, {DType::kBF16, DType::kBF16}})
      for (const bool accumulate : {false, true})
        if (!accumulate || out == DType::kF32) all.push_back({m, n, k, in, out, accumulate});
  return all;
}

class DenseOnCard : public testing::TestWithParam<DenseCase> {
 protected:
  void SetUp() override {
    CISTRON_NEEDS_CARD();
    x = random_tensor(cpu, {c.m, c.k}, c.in, 1);
    w = random_tensor(cpu, {c.n, c.k}, c.in, 2);
    dy = random_tensor(cpu, {c.m, c.n}, c.in, 4);
  }
  /// Runs twice on outputs that start alike, and compares bits, then with float64. `want` and `magnitude` come without what was
  /// in `out` before.
  void expect_product(const Shape& shape, DType dtype, const std::function<void(const Tensor&)>& run,
                      cpu::ref::Matrix<double> want, cpu::ref::Matrix<double> magnitude, int64_t terms) {
    const Tensor before = c.accumulate ? random_tensor(cpu, shape, dtype, 3) : poisoned(cpu, shape, dtype);
    const Tensor out = to_device(cuda, before), again = to_device(cuda, before);
    run(out);
    run(again);
    const Tensor got = to_host(cpu, out);
    EXPECT_TRUE(same_bits(to_host(cpu, again), got));
    const auto old = to_double(before);
    for (size_t i = 0; c.accumulate && i < old.size(); ++i) {
      want.data[i] += old[i];
      magnitude.data[i] += std::abs(old[i]);
    }
    const auto bound = product_bound(magnitude, terms, c.in, dtype);
    EXPECT_TRUE(within(got, want.data, bound));
    // One average term too few must show; behind the rounding of bf16, half of them.
    want.data[0] -= magnitude.data[0] / (dtype == DType::kBF16 ? 2.0 : static_cast<double>(terms));
    EXPECT_FALSE(within(got, want.data, bound));
  }

  const DenseCase c = GetParam();
  CpuContext cpu{2};
  CudaContext cuda;
  Tensor x, w, dy;
};

}  // namespace cistron::test
