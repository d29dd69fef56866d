// cuBLASLt's block-scaled product (1 x 128 by 128 x 128, expert by expert) as an independent oracle for MXFP8 of group 128.
#include <gtest/gtest.h>

#include "bench/kernels/cuda/cublaslt.cuh"
#include "cistron/cuda/gemm/sm90_grouped_gemm.h"
#include "tests/cuda/mx_operands.cuh"
#include "tests/cuda/reference.cuh"
#include "tests/cuda/support.h"

namespace cistron::test {
namespace {

class CublasLtOracle : public testing::Test {
 protected:
  void SetUp() override {
    CISTRON_NEEDS_CARD();
    if (cuda::compute_capability(ctx_) != 90) GTEST_SKIP() << "no Hopper card here: the kernels were not run";
  }
  Context ctx_ = cuda_context();
};

/// Both round f32 sums to bf16: each within 6e-4 + 1.7e-3 of the truth.
TEST_F(CublasLtOracle, AgreesOnEveryExpert) {
  const TestGroups g({0, 256, 130, 512}, 128);
  const int64_t n = 384;
  const int64_t k = 640;
  const auto x = random_activation(g.rows(), k, 128, {.elements = {.seed = 3, .scale = 60}});
  const auto w = random_weight(4, n, k, 128, 1, other({.elements = {.seed = 3, .scale = 60}}));
  const DeviceTensor ours({g.rows(), n}, DType::kBF16);
  const DeviceTensor theirs({g.rows(), n}, DType::kBF16);
  zero(ours);
  zero(theirs);
  cuda::sm90::mxfp8_grouped_gemm(ctx_, {x.operand, w.operand, g.groups, ours});
  const bench::CublasLt lt;
  const bench::BlockScales scales(x.operand, w.operand, g);
  const auto products = bench::expert_products(lt, x.operand, w.operand, scales, theirs, g);
  for (const auto& product : products) product.run(nullptr);
  const auto error = [&](const Tensor& out, int late = -1) {
    RefProduct p = ref_product(ref_operand(x.operand), ref_operand(w.operand), out, g);
    p.k = k;
    p.late = late;
    return deviation(p).relative();
  };
  constexpr double kTolerance = 6e-4 + 1.7e-3;
  EXPECT_LE(error(ours), kTolerance);
  EXPECT_LE(error(theirs), kTolerance) << "the oracle itself";
  EXPECT_GT(error(theirs, 1), 10 * kTolerance) << "control";
  double difference = 0;
  double norm = 0;
  const auto a = bytes_of(ours);
  const auto b = bytes_of(theirs);
  for (size_t e = 0; e < g.counts.size(); ++e)
    for (int64_t i = g.starts[e] * n; i < (g.starts[e] + g.counts[e]) * n; ++i) {
      const double u = static_cast<float>(reinterpret_cast<const bf16*>(a.data())[i]);
      const double v = static_cast<float>(reinterpret_cast<const bf16*>(b.data())[i]);
      difference += (u - v) * (u - v);
      norm += v * v;
    }
  EXPECT_LE(std::sqrt(difference / norm), 2 * kTolerance);
}

}  // namespace
}  // namespace cistron::test
