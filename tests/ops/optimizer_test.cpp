#include "cistron/ops/optimizer.h"

#include <gmock/gmock.h>

#include <limits>

#include "tests/ops/optimizer_support.h"

namespace cistron {
namespace {

using test::copy_of, test::error_of, test::poisoned, test::random_tensor, test::same_bits, test::to_double, test::within;
using test::Expected, test::expected, test::gradients, test::kBeta1, test::kBeta2, test::Moments, test::state_at;
using testing::HasSubstr;

constexpr double kU = 0x1p-24;

StepState norm_of(Context& ctx, const std::vector<Tensor>& grads, float clip_norm) {
  StepState state{.clip_norm = clip_norm, .grad_norm = -1.0F, .clip_factor = -1.0F, .finite = -1};
  ops::grad_norm(ctx, {grads, &state});
  return state;
}

TEST(GradNorm, IsTheNormOfAllTensorsToOneRounding) {
  test::CpuContext ctx(2);
  const auto grads = gradients(ctx);
  double squares = 0;
  for (const Tensor& grad : grads) squares += cpu::ref::sum_of_squares(to_double(grad));
  const double want = std::sqrt(squares);
  const StepState state = norm_of(ctx, grads, 1.0F);
  EXPECT_NEAR(state.grad_norm, want, want * kU * 1.001);
  EXPECT_NEAR(state.clip_factor, 1.0 / (want + 1e-6), 4 * kU / want);
  EXPECT_EQ(state.finite, 1);
  EXPECT_EQ(norm_of(ctx, grads, 0.0F).clip_factor, 1.0F);
  EXPECT_EQ(norm_of(ctx, grads, 1e6F).clip_factor, 1.0F);
  EXPECT_GT(std::abs(norm_of(ctx, {grads.begin() + 1, grads.end()}, 1.0F).grad_norm - want), want * kU * 2);  // control
  EXPECT_EQ(norm_of(ctx, {}, 1.0F).grad_norm, 0.0F);
}

TEST(GradNorm, LargeValuesDoNotOverflowOnTheWay) {
  test::CpuContext ctx;
  const StepState state = norm_of(ctx, {test::tensor_of(ctx, {2}, DType::kF32, {3e30, 4e30})}, 1.0F);
  EXPECT_NEAR(state.grad_norm / 5e30, 1.0, 2 * kU);
  EXPECT_EQ(state.finite, 1);
}

TEST(GradNorm, OneBadElementAnywhereIsSeen) {
  test::CpuContext ctx(2);
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()})
    for (size_t tensor : {0U, 1U, 3U, 4U}) {
      const auto grads = gradients(ctx);
      grads[tensor].span<float>().back() = bad;
      const StepState state = norm_of(ctx, grads, 1.0F);
      EXPECT_EQ(state.finite, 0);
      EXPECT_FALSE(std::isfinite(state.grad_norm));
    }
}

TEST(GradNorm, InTwoHalvesOverPartsItIsTheNormOfTheWhole) {
  test::CpuContext ctx(2);
  const auto grads = gradients(ctx);
  const StepState whole = norm_of(ctx, grads, 1.0F);
  std::vector<double> sums(2, -1.0);
  ops::sum_of_squares(ctx, {std::span(grads).first(2), Tensor::view(std::span(sums).first(1))});
  ops::sum_of_squares(ctx, {std::span(grads).subspan(2), Tensor::view(std::span(sums).last(1))});
  const auto norm_from = [&](double squares) {
    StepState state{.clip_norm = 1.0F};
    ops::norm_of_squares(ctx, {Tensor::view(std::span(&squares, 1)), &state});
    return state;
  };
  const StepState halves = norm_from(sums[0] + sums[1]);
  EXPECT_NEAR(halves.grad_norm, whole.grad_norm, 2 * kU * whole.grad_norm);
  EXPECT_NEAR(halves.clip_factor, whole.clip_factor, 4 * kU * whole.clip_factor);
  EXPECT_EQ(norm_from(std::numeric_limits<double>::quiet_NaN()).finite, 0);
  EXPECT_GT(std::abs(norm_from(sums[1]).grad_norm - whole.grad_norm), 2 * kU * whole.grad_norm);  // control
}

void step(Context& ctx, const Moments& t, float decay, const StepState& state, float eps) {
  const std::vector<ops::AdamWTensor> tensors{t.args(decay)};
  ops::adamw(ctx, {.tensors = tensors, .beta1 = kBeta1, .beta2 = kBeta2, .eps = eps, .state = &state});
}

TEST(AdamW, MatchesTheReferenceForSeveralSteps) {
  test::CpuContext ctx(2);
  for (const Shape& shape : {Shape{1}, Shape{17}, Shape{3, 80}, Shape{40000}, Shape{0}})
    for (float decay : {0.0F, 0.1F})
      for (int64_t at : {1, 2, 1000}) {
        const Moments t(ctx, shape, 1);
        if (at == 1) {
          for (float& x : t.m.span<float>()) x = 0;
          for (float& x : t.v.span<float>()) x = 0;
        }
        const Expected want = expected(t, state_at(at), decay, 1e-8F);
        const Expected other_decay = expected(t, state_at(at), decay + 0.01F, 1e-8F);
        step(ctx, t, decay, state_at(at), 1e-8F);
        EXPECT_TRUE(within(t.master, want.p, want.p_bound));
        EXPECT_TRUE(within(t.m, want.m, want.m_bound));
        EXPECT_TRUE(within(t.v, want.v, want.v_bound));
        for (int64_t i = 0; i < t.master.numel(); ++i) {
          const auto j = static_cast<size_t>(i);
          ASSERT_EQ(t.working.span<bf16>()[j].bits, bf16(t.master.span<float>()[j]).bits);
        }
        if (t.master.numel() < 2) continue;
        EXPECT_FALSE(within(t.master, other_decay.p, want.p_bound));  // control
      }
}

// Loshchilov and Hutter's sequence by hand, two steps of one element: p = 1, g = 0.5 then -0.25.
TEST(AdamW, TwoStepsByHand) {
  test::CpuContext ctx;
  const Tensor p = test::tensor_of(ctx, {1}, DType::kF32, {1}), g = test::tensor_of(ctx, {1}, DType::kF32, {0.5});
  const Tensor m = test::tensor_of(ctx, {1}, DType::kF32, {0}), v = test::tensor_of(ctx, {1}, DType::kF32, {0});
  const std::vector<ops::AdamWTensor> tensors{{p, g, m, v, {}, 0.1F}};
  StepState state{.step = 1, .learning_rate = 0.01F, .bias_correction1 = 0.5F, .bias_correction2 = 0.25F};
  ops::adamw(ctx, {.tensors = tensors, .beta1 = 0.5F, .beta2 = 0.75F, .eps = 0.0F, .state = &state});
  EXPECT_NEAR(to_double(p)[0], 0.999 - 0.01, 1e-7);  // m_hat = g, v_hat = g^2
  g.span<float>()[0] = -0.25F;
  state.bias_correction1 = 0.75F;
  state.bias_correction2 = 0.4375F;
  ops::adamw(ctx, {.tensors = tensors, .beta1 = 0.5F, .beta2 = 0.75F, .eps = 0.0F, .state = &state});
  EXPECT_NEAR(to_double(m)[0], 0.0, 1e-9);  // 0.5 x 0.25 - 0.5 x 0.25
  EXPECT_NEAR(to_double(v)[0], 0.75 * 0.0625 + 0.25 * 0.0625, 1e-9);
  EXPECT_NEAR(to_double(p)[0], 0.989 * 0.999, 1e-7);
}

TEST(AdamW, TouchesNothingWhenNotFinite) {
  test::CpuContext ctx;
  const Moments t(ctx, {1000}, 5);
  const Tensor p = copy_of(ctx, t.master), m = copy_of(ctx, t.m), v = copy_of(ctx, t.v), working = copy_of(ctx, t.working);
  StepState state = state_at(3);
  state.finite = 0;
  step(ctx, t, 0.1F, state, 1e-8F);
  EXPECT_TRUE(same_bits(t.master, p) && same_bits(t.m, m) && same_bits(t.v, v) && same_bits(t.working, working));
  state.finite = 1;
  step(ctx, t, 0.1F, state, 1e-8F);
  EXPECT_FALSE(same_bits(t.master, p));  // control
}

TEST(Optimizer, SameBitsForAnyThreads) {
  EXPECT_TRUE(test::same_for_any_threads([](Context& ctx) {
    const Moments t(ctx, {100001}, 6);
    StepState state = state_at(2);
    state.clip_norm = 0.5F;
    const std::vector<Tensor> grads{t.grad, t.m};
    ops::grad_norm(ctx, {grads, &state});
    step(ctx, t, 0.1F, state, 1e-8F);
    return std::vector{t.master, t.m, t.v, t.working, test::tensor_of(ctx, {1}, DType::kF64, {state.grad_norm})};
  }));
}

TEST(Optimizer, ChecksShapesAlsoOnMeta) {
  Context ctx = test::meta_context();
  const Tensor a = ctx.empty({6}, DType::kF32), b = ctx.empty({7}, DType::kF32), half = ctx.empty({6}, DType::kBF16);
  StepState state;
  const auto adamw = [&](const ops::AdamWTensor& t) {
    const std::vector<ops::AdamWTensor> tensors{t};
    ops::adamw(ctx, {.tensors = tensors, .state = &state});
  };
  const auto norm = [&](const Tensor& t) {
    const std::vector<Tensor> grads{t};
    ops::grad_norm(ctx, {grads, &state});
  };
  norm(a);
  adamw({a, a, a, a, half});
  adamw({a, a, a, a, {}});
  EXPECT_THAT(error_of([&] { norm(half); }), HasSubstr("[grad_norm] grad"));
  EXPECT_THAT(error_of([&] { adamw({a, b, a, a, {}}); }), HasSubstr("[adamw] grad"));
  EXPECT_THAT(error_of([&] { adamw({a, a, a, b, {}}); }), HasSubstr("[adamw] v"));
  EXPECT_THAT(error_of([&] { adamw({a, a, a, a, a}); }), HasSubstr("[adamw] working"));
}

}  // namespace
}  // namespace cistron
