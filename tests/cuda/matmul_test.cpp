// The dense products on the card against float64: every dtype, sizes that tensor cores take and that they do not.
#include "cistron/ops/matmul.h"

#include <cstring>

#include "cistron/cpu/ref/matmul.h"
#include "cistron/cuda/runtime/runtime.h"
#include "tests/cuda/support.h"
#include "tests/ops/product_bounds.h"

namespace cistron::test {
namespace {

using cpu::ref::Matrix;

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

class CudaMatmul : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    CISTRON_NEEDS_CARD();
    x = random_tensor(cpu, {c.m, c.k}, c.in, 1);
    w = random_tensor(cpu, {c.n, c.k}, c.in, 2);
    dy = random_tensor(cpu, {c.m, c.n}, c.in, 4);
  }
  /// Runs twice on outputs that start alike, and compares bits, then with float64. `want` and `magnitude` come without what was
  /// in `out` before.
  void expect_product(const Shape& shape, DType dtype, const std::function<void(const Tensor&)>& run, Matrix<double> want,
                      Matrix<double> magnitude, int64_t terms) {
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

  const Case c = GetParam();
  CpuContext cpu{2};
  CudaContext cuda;
  Tensor x, w, dy;
};

TEST_P(CudaMatmul, Forward) {
  const Tensor a = to_device(cuda, x), b = to_device(cuda, w);
  const auto x2 = to_matrix(x), w2 = to_matrix(w);
  expect_product(
      {c.m, c.n}, c.out,
      [&](const Tensor& out) { ops::matmul_forward(cuda, {.x = a, .w = b, .out = out, .accumulate = c.accumulate}); },
      cpu::ref::matmul_forward(x2, w2), cpu::ref::matmul_forward(absolute(x2), absolute(w2)), c.k);
}

TEST_P(CudaMatmul, Dgrad) {
  const Tensor a = to_device(cuda, dy), b = to_device(cuda, w);
  const auto dy2 = to_matrix(dy), w2 = to_matrix(w);
  expect_product(
      {c.m, c.k}, c.out,
      [&](const Tensor& out) { ops::matmul_dgrad(cuda, {.dy = a, .w = b, .out = out, .accumulate = c.accumulate}); },
      cpu::ref::matmul_dgrad(dy2, w2), cpu::ref::matmul_dgrad(absolute(dy2), absolute(w2)), c.n);
}

TEST_P(CudaMatmul, Wgrad) {
  const Tensor a = to_device(cuda, dy), b = to_device(cuda, x);
  const auto dy2 = to_matrix(dy), x2 = to_matrix(x);
  expect_product(
      {c.n, c.k}, DType::kF32,
      [&](const Tensor& out) { ops::matmul_wgrad(cuda, {.dy = a, .x = b, .out = out, .accumulate = c.accumulate}); },
      cpu::ref::matmul_wgrad(dy2, x2), cpu::ref::matmul_wgrad(absolute(dy2), absolute(x2)), c.m);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaMatmul, testing::ValuesIn(cases()));

TEST(CudaMatmulEdges, SizesOfZero) {
  CISTRON_NEEDS_CARD();
  CpuContext cpu;
  CudaContext cuda;
  const Tensor none = cuda.empty({0, 5}, DType::kF32), no_rows = cuda.empty({0, 4}, DType::kF32);
  const Tensor w = random_tensor(cpu, {4, 5}, DType::kF32, 1), on_card = to_device(cuda, w);
  ops::matmul_forward(cuda, {.x = none, .w = on_card, .out = no_rows});
  const Tensor dw = poisoned_on_device(cuda, {4, 5}, DType::kF32);
  ops::matmul_wgrad(cuda, {.dy = no_rows, .x = none, .out = dw});
  EXPECT_TRUE(within(to_host(cpu, dw), std::vector<double>(20, 0.0), 0.0));
  ops::matmul_wgrad(cuda, {.dy = no_rows, .x = none, .out = on_card, .accumulate = true});
  EXPECT_TRUE(same_bits(to_host(cpu, on_card), w));
}

TEST(CudaMatmulGraph, ReplayGivesTheSameBits) {
  CISTRON_NEEDS_CARD();
  CpuContext cpu;
  CudaContext cuda;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor x = to_device(cuda, random_tensor(cpu, {1500, 64}, dtype, 1)),
                 w = to_device(cuda, random_tensor(cpu, {40, 64}, dtype, 2));
    const auto run = [&](Context& ctx, const Tensor& y, const Tensor& dx, const Tensor& dw) {
      ops::matmul_forward(ctx, {.x = x, .w = w, .out = y});
      ops::matmul_dgrad(ctx, {.dy = y, .w = w, .out = dx});
      ops::matmul_wgrad(ctx, {.dy = y, .x = x, .out = dw, .accumulate = true});
    };
    std::vector<Tensor> eager, captured;
    for (auto* outs : {&eager, &captured}) {
      *outs = {poisoned_on_device(cuda, {1500, 40}, dtype), poisoned_on_device(cuda, {1500, 64}, dtype),
               to_device(cuda, random_tensor(cpu, {40, 64}, DType::kF32, 3))};
    }
    run(cuda, eager[0], eager[1], eager[2]);
    run(cuda, eager[0], eager[1], eager[2]);
    replay_captured(int64_t{64} << 20, 2, [&](Context& ctx) { run(ctx, captured[0], captured[1], captured[2]); });
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(to_host(cpu, captured[i]), to_host(cpu, eager[i]))) << i;
  }
}

// A few blocks' worth of multiprocessors.
TEST(CudaMatmulBudget, SixMultiprocessors) {
  CISTRON_NEEDS_CARD();
  CpuContext cpu;
  CudaContext cuda;
  cuda.sm_budget = 6;
  const Tensor x = random_tensor(cpu, {900, 264}, DType::kBF16, 1), w = random_tensor(cpu, {520, 264}, DType::kBF16, 2);
  const Tensor on_card = poisoned_on_device(cuda, {900, 520}, DType::kBF16);
  ops::matmul_forward(cuda, {.x = to_device(cuda, x), .w = to_device(cuda, w), .out = on_card});
  const auto a = to_matrix(x), b = to_matrix(w);
  EXPECT_TRUE(within(to_host(cpu, on_card), cpu::ref::matmul_forward(a, b).data,
                     product_bound(cpu::ref::matmul_forward(absolute(a), absolute(b)), 264, DType::kBF16, DType::kBF16)));
}

}  // namespace
}  // namespace cistron::test
