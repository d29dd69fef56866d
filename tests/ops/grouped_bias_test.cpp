#include "cistron/ops/grouped_bias.h"

#include <gmock/gmock.h>

#include "cistron/ops/swiglu.h"
#include "tests/ops/bias_cases.h"

namespace cistron::test {
namespace {

using testing::HasSubstr;

constexpr DType kFloats[] = {DType::kF32, DType::kBF16};

BiasGradients backward(Context& ctx, const BiasCase& in, const BiasGradients& before = {}) {
  const bool add = before.dbias.defined();
  const Tensor dbias = add ? copy_of(ctx, before.dbias) : poisoned(ctx, in.bias.shape(), DType::kF32);
  const Tensor dweight = add ? copy_of(ctx, before.dweight) : poisoned(ctx, {in.groups.max_rows()}, DType::kF32);
  ops::grouped_bias_backward(ctx, {.dy = in.dy,
                                   .bias = in.operand(),
                                   .groups = in.groups,
                                   .dbias = {.grad = dbias, .accumulate = add},
                                   .dweight = dweight,
                                   .accumulate_dweight = add,
                                   .by_token = in.by_token});
  return {dbias, dweight};
}

TEST(GroupedBias, Backward) {
  CpuContext ctx(2);
  for (const auto& c : routing_cases())
    for (const DType dtype : kFloats)
      for (const bool scaled : {false, true})
        for (const bool by_token : {false, true}) {
          const BiasCase in(ctx, c, 37, dtype, scaled, by_token);
          const BiasGradients got = backward(ctx, in);
          EXPECT_TRUE(gradients_within(in, got));
          const Tensor dweight = got.dweight;
          for (const double v : to_double(dweight.rows(in.used(), dweight.dim(0) - in.used()))) EXPECT_TRUE(std::isnan(v));
          EXPECT_TRUE(!scaled || c.experts == 1 || !gradients_within(in, got, {}, of_wrong_experts(ctx, in.bias)));
          BiasCase unscaled = in;  // control: sums without the routing weights
          unscaled.scale.clear();
          EXPECT_TRUE(!scaled || !gradients_within(unscaled, got));
        }
}

TEST(GroupedBias, BackwardAddsToWhatIsThere) {
  CpuContext ctx(2);
  for (const auto& c : routing_cases()) {
    const BiasCase in(ctx, c, 37, DType::kBF16, true);
    const BiasGradients before{.dbias = random_tensor(ctx, in.bias.shape(), DType::kF32, 8),
                               .dweight = random_tensor(ctx, {in.groups.max_rows()}, DType::kF32, 9)};
    const BiasGradients got = backward(ctx, in, before);
    EXPECT_TRUE(gradients_within(in, got, before));
    EXPECT_FALSE(gradients_within(in, got));
  }
}

TEST(GroupedBias, AnExpertWithoutRowsGetsZerosOrKeepsItsSum) {
  CpuContext ctx;
  const BiasCase in(ctx, {130, 2, 8, Choice::kLastExpertEmpty, 8}, 20, DType::kF32, true);
  const BiasGradients before{.dbias = random_tensor(ctx, in.bias.shape(), DType::kF32, 8),
                             .dweight = random_tensor(ctx, {in.groups.max_rows()}, DType::kF32, 9)};
  EXPECT_TRUE(within(backward(ctx, in).dbias.rows(7, 1), std::vector<double>(20, 0.0), 0.0));
  EXPECT_TRUE(same_bits(backward(ctx, in, before).dbias.rows(7, 1), before.dbias.rows(7, 1)));
}

TEST(GroupedBias, ProductsAddItBeforeTheyRound) {
  CpuContext ctx(2);
  constexpr int64_t kDepth = 33;
  for (const auto& c : routing_cases())
    for (const auto& [in_dtype, out_dtype] :
         {std::pair{DType::kF32, DType::kF32}, {DType::kBF16, DType::kF32}, {DType::kBF16, DType::kBF16}})
      for (const int64_t width : {20, 1100})  // a part of a tile of columns; one and a part
        for (const bool scaled : {false, true}) {
          if (width > 1000 && c.tokens != 37) continue;
          const BiasCase in(ctx, c, width, in_dtype, scaled);
          const Tensor x = random_tensor(ctx, {in.groups.max_rows(), kDepth}, in_dtype, 2);
          const Tensor w = random_tensor(ctx, {c.experts, width, kDepth}, in_dtype, 3, 0.3);
          poison_unused_rows(x, in.groups);
          const Tensor y = poisoned(ctx, {x.dim(0), width}, out_dtype);
          ops::grouped_gemm_forward(ctx, {.x = x, .w = w, .groups = in.groups, .out = y, .bias = in.operand()});
          EXPECT_TRUE(biased_product_within(in, x, w, y, in.bias));
          EXPECT_TRUE(c.experts == 1 || !biased_product_within(in, x, w, y, of_wrong_experts(ctx, in.bias)));
          BiasCase other = in;  // control: scaled where it is not
          other.scale.assign(other.source.size(), scaled ? 1.0 : 0.5);
          EXPECT_FALSE(biased_product_within(other, x, w, y, in.bias));
        }
}

TEST(GroupedBias, ReferenceGradientsAgreeWithFiniteDifferences) {
  CpuContext ctx;
  const BiasCase in(ctx, {5, 2, 3, Choice::kRandom, 4}, 3, DType::kF32, true, true);
  const auto dy = in.dy_rows();
  const auto bias = to_matrix(in.bias);
  const auto loss = [&](const std::vector<double>& values, const std::vector<double>& scale) {
    cpu::ref::Matrix<double> y(dy.rows, dy.cols);
    cpu::ref::add_grouped_bias(y, cpu::ref::Matrix<double>(bias.rows, bias.cols, values), scale, in.segments);
    double sum = 0;
    for (size_t i = 0; i < y.data.size(); ++i) sum += dy.data[i] * y.data[i];
    return sum;
  };
  const auto got = cpu::ref::grouped_bias_backward(dy, bias, in.scale, in.segments);
  const auto of_bias = numeric_gradient([&](auto& v) { return loss(v, in.scale); }, bias.data);
  const auto of_scale = numeric_gradient([&](auto& v) { return loss(bias.data, v); }, in.scale);
  EXPECT_TRUE(within(got.dbias.data, of_bias, std::vector<double>(of_bias.size(), 1e-8)));
  EXPECT_TRUE(within(got.dweight, of_scale, std::vector<double>(of_scale.size(), 1e-8)));
}

TEST(GroupedBias, SameBitsForAnyThreads) {
  EXPECT_TRUE(same_for_any_threads([](Context& ctx) {
    const BiasCase in(ctx, {700, 2, 4, Choice::kRandom, 8}, 200, DType::kBF16, true);
    const BiasGradients got = backward(ctx, in);
    return std::vector{got.dbias, got.dweight.rows(0, in.used())};
  }));
}

TEST(GroupedBias, ScaledSwigluAddsToTheOtherGradientOfTheRoutingWeights) {
  CpuContext ctx;
  const BiasCase in(ctx, {50, 2, 4, Choice::kRandom, 8}, 16, DType::kF32, true);
  const Tensor gate_up = random_tensor(ctx, {in.groups.max_rows(), 32}, DType::kF32, 2);
  const auto dweight = [&](bool add) {
    const Tensor out = backward(ctx, in).dweight, dgate_up = poisoned(ctx, gate_up.shape(), DType::kF32);
    ops::scaled_swiglu_backward(ctx, {in.dy, gate_up, in.groups, dgate_up, out, add});
    return to_double(out.rows(0, in.used()));
  };
  const auto sum = dweight(true), alone = dweight(false), of_bias = to_double(backward(ctx, in).dweight.rows(0, in.used()));
  for (size_t r = 0; r < sum.size(); ++r) EXPECT_NEAR(sum[r], alone[r] + of_bias[r], 0x1p-23 * std::abs(sum[r]));
  EXPECT_NE(sum, alone);
}

TEST(GroupedBias, ChecksShapesAlsoOnMeta) {
  Context ctx = meta_context();
  const ops::Groups groups = ops::empty_groups(ctx, 6, 2, 4);
  const Tensor dy = ctx.empty({12, 8}), bias = ctx.empty({4, 8}, DType::kF32), dweight = ctx.empty({12}, DType::kF32);
  const auto error = [&](const Tensor& dy, const Tensor& bias, const Tensor& dbias, const Tensor& dweight) {
    return error_of([&] {
      ops::grouped_bias_backward(
          ctx, {.dy = dy, .bias = {bias, true}, .groups = groups, .dbias = {.grad = dbias}, .dweight = dweight});
    });
  };
  EXPECT_EQ(error(dy, bias, bias, dweight), "");
  EXPECT_THAT(error(bias, bias, bias, dweight), HasSubstr("[grouped_bias_backward] dy"));
  EXPECT_THAT(error(dy, dy, bias, dweight), HasSubstr("[grouped_bias_backward] bias"));
  EXPECT_THAT(error(dy, bias, dy, dweight), HasSubstr("[grouped_bias_backward] dbias"));
  EXPECT_THAT(error(dy, bias, bias, bias), HasSubstr("[grouped_bias_backward] dweight"));
  const Tensor w = ctx.empty({4, 8, 16}), x = ctx.empty({12, 16});
  EXPECT_THAT(error_of([&] {
                ops::grouped_gemm_forward(ctx, {.x = x, .w = w, .groups = groups, .out = dy, .bias = {.values = dweight}});
              }),
              HasSubstr("[grouped_gemm_forward] bias"));
}

}  // namespace
}  // namespace cistron::test
