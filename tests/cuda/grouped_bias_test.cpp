// Experts' biases on the card against float64, pad rows and outputs poisoned, every result twice.
#include "cistron/ops/swiglu.h"
#include "tests/cuda/support.h"
#include "tests/ops/bias_cases.h"
#include "tests/ops/mxfp8_swiglu_products.h"

namespace cistron::test {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kBF16};
/// Kernels that do not add the bias themselves round the product, and then the sum.
constexpr int kRoundings = 2;
/// No whole chunk of 16 bytes; a part of a tile of columns; some tiles and a part.
constexpr int64_t kWidths[] = {37, 80, 776};

std::vector<RoutingCase> cases() {
  auto all = routing_cases();
  all.push_back({900, 2, 4, Choice::kRandom, 128});  // several tiles of rows an expert
  all.push_back({700, 1, 3, Choice::kAllToLast, 8});
  return all;
}

class CudaGroupedBias : public OnCard {
 protected:
  BiasGradients backward(const BiasCase& in, const BiasGradients& before = {}) {
    const bool add = before.dbias.defined();
    const auto got = twice([&] {
      const Tensor dbias = add ? device(before.dbias) : poisoned_there(in.bias.shape(), DType::kF32);
      const Tensor dweight = add ? device(before.dweight) : poisoned_there({in.groups.max_rows()}, DType::kF32);
      ops::grouped_bias_backward(cuda_, {.dy = device(in.dy),
                                         .bias = {.values = device(in.bias), .scaled = in.scaled},
                                         .groups = device(in.groups),
                                         .dbias = {.grad = dbias, .accumulate = add},
                                         .dweight = dweight,
                                         .accumulate_dweight = add,
                                         .by_token = in.by_token});
      return std::vector{dbias, dweight};
    });
    return {got[0], got[1]};
  }
};

TEST_F(CudaGroupedBias, Backward) {
  for (const auto& c : cases())
    for (const DType dtype : kFloats)
      for (const int64_t width : kWidths)
        for (const bool scaled : {false, true}) {
          const BiasCase in(cpu_, c, width, dtype, scaled, c.tokens % 2 == 0);
          const BiasGradients got = backward(in);
          EXPECT_TRUE(gradients_within(in, got)) << width;
          for (const double v : to_double(got.dweight.rows(in.used(), got.dweight.dim(0) - in.used())))
            ASSERT_TRUE(std::isnan(v));
          EXPECT_TRUE(!scaled || c.experts == 1 || !gradients_within(in, got, {}, of_wrong_experts(cpu_, in.bias)));
          BiasCase unscaled = in;  // control: sums without the routing weights
          unscaled.scale.clear();
          EXPECT_TRUE(!scaled || !gradients_within(unscaled, got));
        }
}

TEST_F(CudaGroupedBias, BackwardAddsToWhatIsThere) {
  for (const auto& c : cases()) {
    const BiasCase in(cpu_, c, 264, DType::kBF16, true, c.tokens % 2 == 1);
    const BiasGradients before{.dbias = random_tensor(cpu_, in.bias.shape(), DType::kF32, 8),
                               .dweight = random_tensor(cpu_, {in.groups.max_rows()}, DType::kF32, 9)};
    const BiasGradients got = backward(in, before);
    EXPECT_TRUE(gradients_within(in, got, before));
    EXPECT_FALSE(gradients_within(in, got));
  }
}

TEST_F(CudaGroupedBias, ProductsAddIt) {
  constexpr int64_t kDepth = 72;
  for (const GemmKernels kernels : {GemmKernels::kAuto, GemmKernels::kPortable})
    for (const auto& c : cases())
      for (const DType dtype : kFloats)
        for (const int64_t width : {24, 776})
          for (const bool scaled : {false, true}) {
            if (c.alignment != 128) continue;  // what Hopper's kernels want
            cuda_.gemm = kernels;
            const BiasCase in(cpu_, c, width, dtype, scaled);
            const Tensor x = random_tensor(cpu_, {in.groups.max_rows(), kDepth}, dtype, 2);
            const Tensor w = random_tensor(cpu_, {c.experts, width, kDepth}, dtype, 3, 0.3);
            poison_unused_rows(x, in.groups);
            const Tensor y = twice([&] {
                               const Tensor out = poisoned_there({x.dim(0), width}, dtype);
                               ops::grouped_gemm_forward(cuda_, {.x = device(x),
                                                                 .w = device(w),
                                                                 .groups = device(in.groups),
                                                                 .out = out,
                                                                 .bias = {.values = device(in.bias), .scaled = scaled}});
                               return std::vector{out};
                             }).front();
            EXPECT_TRUE(biased_product_within(in, x, w, y, in.bias, kRoundings)) << width;
            EXPECT_TRUE(c.experts == 1 || !biased_product_within(in, x, w, y, of_wrong_experts(cpu_, in.bias), kRoundings));
            BiasCase other = in;  // control: scaled where it is not
            other.scale.assign(other.source.size(), scaled ? 1.0 : 0.5);
            EXPECT_FALSE(biased_product_within(other, x, w, y, in.bias, kRoundings));
          }
}

TEST_F(CudaGroupedBias, Mxfp8ProductsAddIt) {
  for (const GemmKernels kernels : {GemmKernels::kAuto, GemmKernels::kPortable}) {
    cuda_.gemm = kernels;
    Mxfp8SwigluCase in(cpu_, {257, 3, 16, Choice::kRandom, 128}, 256, 128, false);
    in.bias = random_tensor(cpu_, {16, 2 * in.width}, DType::kF32, 5);
    const Tensor y = poisoned_there({in.groups.max_rows(), 2 * in.width}, DType::kBF16);
    ops::mxfp8_grouped_gemm(cuda_, {.x = to_device(cuda_, in.x),
                                    .w = to_device(cuda_, in.w),
                                    .groups = device(in.groups),
                                    .out = y,
                                    .bias = {.values = device(in.bias)}});
    const auto got = without_pads(to_matrix(host(y).rows(0, in.used())), in);
    const auto agrees = [&] {
      const auto want = without_pads(in.product(), in);
      return close("y", got.data, want.data, want.data, kRoundings * kRounded);
    };
    EXPECT_TRUE(agrees());
    in.bias = of_wrong_experts(cpu_, in.bias);
    EXPECT_FALSE(agrees());
  }
}

TEST_F(CudaGroupedBias, ScaledSwigluAddsToTheOtherGradientOfTheRoutingWeights) {
  const BiasCase in(cpu_, {257, 3, 16, Choice::kRandom, 8}, 80, DType::kF32, true);
  const Tensor gate_up = random_tensor(cpu_, {in.groups.max_rows(), 160}, DType::kF32, 2);
  const Tensor before = backward(in).dweight;
  const auto dweight = [&](bool add) {
    const Tensor out = device(before), dgate_up = poisoned_there(gate_up.shape(), DType::kF32);
    ops::scaled_swiglu_backward(cuda_, {device(in.dy), device(gate_up), device(in.groups), dgate_up, out, add});
    return to_double(host(out).rows(0, in.used()));
  };
  const auto sum = dweight(true), alone = dweight(false), of_bias = to_double(before.rows(0, in.used()));
  for (size_t r = 0; r < sum.size(); ++r) EXPECT_NEAR(sum[r], alone[r] + of_bias[r], 0x1p-23 * std::abs(sum[r]));
  EXPECT_NE(sum, alone);
}

}  // namespace
}  // namespace cistron::test
