// The dense products on the card against float64: every dtype, sizes that tensor cores take and that they do not.
#include "cistron/ops/matmul.h"

#include <cstring>

#include "cistron/cuda/runtime/runtime.h"
#include "tests/cuda/dense_support.h"

namespace cistron::test {
namespace {

using CudaMatmul = DenseOnCard;

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

INSTANTIATE_TEST_SUITE_P(Shapes, CudaMatmul, testing::ValuesIn(dense_cases()));

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
