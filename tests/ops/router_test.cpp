#include "cistron/ops/router.h"

#include <gmock/gmock.h>

#include <limits>
#include <set>

#include "tests/ops/router_support.h"

namespace cistron {
namespace {

using cpu::ref::Matrix;
using test::choices, test::route, test::Routed, test::RouterCase;
using test::error_of, test::poisoned, test::random_tensor, test::same_bits, test::to_double, test::to_matrix, test::within;
using testing::HasSubstr;

TEST(Router, ForwardMatchesTheReference) {
  test::CpuContext ctx(2);
  for (const auto& [tokens, top_k, experts, scale] : test::router_cases()) {
    const Tensor logits = random_tensor(ctx, {tokens, experts}, DType::kF32, 1, scale);
    const Routed got = route(ctx, logits, top_k);
    EXPECT_TRUE(test::forward_within(got, logits));
    if (tokens == 0 || top_k == experts || scale > 10) continue;            // the chosen ones are all there is
    EXPECT_FALSE(test::forward_within(got, logits, /*normalised=*/false));  // control
  }
}

TEST(Router, TiesGoToTheLowestExpert) {
  test::CpuContext ctx;
  const Tensor logits = test::tensor_of(ctx, {3, 5}, DType::kF32, {1, 1, 1, 1, 1, 0, 2, 0, 2, 2, 3, 0, 0, 0, 1});
  EXPECT_EQ(test::ints(route(ctx, logits, 3).experts), (std::vector<int32_t>{0, 1, 2, 1, 3, 4, 0, 4, 1}));
}

TEST(Router, ProbsMayAliasLogits) {
  test::CpuContext ctx;
  const Tensor logits = random_tensor(ctx, {20, 8}, DType::kF32, 2);
  const Routed apart = route(ctx, logits, 2);
  ops::router_forward(ctx, {logits, logits, apart.lse, apart.experts, apart.weights});
  EXPECT_TRUE(same_bits(logits, apart.probs));
}

TEST(Router, ReplayTakesTheExpertsAsGiven) {
  test::CpuContext ctx;
  const Tensor logits = random_tensor(ctx, {20, 8}, DType::kF32, 3);
  const Routed first = route(ctx, logits, 2);
  const Routed again(ctx, 20, 2, 8);
  ops::router_forward(ctx, {logits, again.probs, again.lse, first.experts, again.weights, true});
  EXPECT_TRUE(same_bits(again.weights, first.weights));
  const Tensor others = test::random_choices(ctx, 20, 2, 8, test::Choice::kRandom, 4), kept = test::copy_of(ctx, others);
  ops::router_forward(ctx, {logits, again.probs, again.lse, others, again.weights, true});
  EXPECT_TRUE(same_bits(others, kept));
  EXPECT_FALSE(same_bits(again.weights, first.weights));
  others.span<int32_t>()[5] = 8;
  EXPECT_THAT(error_of([&] { ops::router_forward(ctx, {logits, again.probs, again.lse, others, again.weights, true}); }),
              HasSubstr("replayed expert 8 of 8"));
}

TEST(Router, NaNAndInfinityStillGiveDistinctExperts) {
  test::CpuContext ctx;
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  const Tensor logits = test::tensor_of(ctx, {5, 4}, DType::kF32, {kNaN, 1, 2,     3,     kNaN,  kNaN,  kNaN,  kNaN, kInf,  0,
                                                                   kInf, 1, -kInf, -kInf, -kInf, -kInf, -kInf, 0,    -kInf, 1});
  for (int64_t k : {1, 2, 4}) {
    const Routed r = route(ctx, logits, k);
    const auto experts = choices(r.experts);
    for (int64_t t = 0; t < 5; ++t) {
      std::set<int32_t> seen;
      for (int64_t j = 0; j < k; ++j) seen.insert(experts(t, j));
      EXPECT_EQ(seen.size(), static_cast<size_t>(k));
      EXPECT_GE(*seen.begin(), 0);
      EXPECT_LT(*seen.rbegin(), 4);
    }
    EXPECT_TRUE(std::isnan(r.probs.span<float>()[0]));  // and it shows
    EXPECT_EQ(experts(4, 0), 3);
  }
}

TEST(Router, StatsAddUp) {
  test::CpuContext ctx(2);
  for (const auto& [tokens, top_k, experts, scale] : test::router_cases()) {
    const Routed r = route(ctx, random_tensor(ctx, {tokens, experts}, DType::kF32, 5, scale), top_k);
    auto want = test::stats_of(to_matrix(r.probs), to_double(r.lse), choices(r.experts));
    const Tensor stats = test::tensor_of(ctx, {2 * experts + 3}, DType::kF64, std::vector<double>(want.size(), 1.0));
    ops::router_stats(ctx, {r.probs, r.lse, r.experts, stats});
    std::vector<double> bound;
    for (double& x : want) {
      x += 1;
      bound.push_back(x * static_cast<double>(tokens + 1) * 0x1p-52);
    }
    bound[bound.size() - 2] += 0x1p-23 * want[want.size() - 2];  // logarithms in f32
    EXPECT_TRUE(within(stats, want, bound));
    want[0] += 1;
    EXPECT_FALSE(within(stats, want, bound));
  }
}

TEST(Router, BackwardMatchesTheReference) {
  test::CpuContext ctx(2);
  for (const RouterCase& c : test::router_cases())
    for (const auto& [aux, z] : {std::pair(0.0F, 0.0F), std::pair(0.5F, 0.0F), std::pair(0.0F, 0.1F), std::pair(0.02F, 0.001F)}) {
      const test::RouterBackwardCase b(ctx, c, aux, z);
      const auto want = cpu::ref::router_backward(to_matrix(b.logits), choices(b.routed.experts), b.dweights, b.losses);
      EXPECT_TRUE(within(b.run(ctx), want.data, b.bound()));
    }
}

TEST(Router, BackwardMissesNoTerm) {
  test::CpuContext ctx;
  const test::RouterBackwardCase b(ctx, {50, 2, 8}, 0.5F, 0.1F);
  const auto wrong = [&](auto change) {
    auto losses = b.losses;
    auto dweights = b.dweights;
    change(losses, dweights);
    return cpu::ref::router_backward(to_matrix(b.logits), choices(b.routed.experts), dweights, losses).data;
  };
  const Tensor got = b.run(ctx);
  EXPECT_FALSE(within(got, wrong([](auto& losses, auto&) { losses.aux_coefficient = 0; }), b.bound()));
  EXPECT_FALSE(within(got, wrong([](auto& losses, auto&) { losses.z_coefficient = 0; }), b.bound()));
  EXPECT_FALSE(within(got, wrong([](auto&, auto& dweights) { dweights(0, 1) = 0; }), b.bound()));
  EXPECT_TRUE(within(got, wrong([](auto&, auto&) {}), b.bound()));
}

// The objective itself, in f64: what the backward must be the gradient of.
TEST(Router, ReferenceGradientAgreesWithFiniteDifferences) {
  test::CpuContext ctx;
  for (const RouterCase& c : {RouterCase{6, 2, 5}, RouterCase{3, 4, 4}, RouterCase{4, 1, 3}, RouterCase{2, 1, 1}}) {
    const test::RouterBackwardCase b(ctx, c, 0.7F, 0.2F);
    const auto experts = choices(b.routed.experts);
    const auto objective = [&](const std::vector<double>& values) {
      std::vector<double> lse;
      const auto probs = cpu::ref::router_probs(Matrix<double>(c.tokens, c.experts, values), &lse);
      const auto weights = cpu::ref::routing_weights(probs, experts);
      double loss = b.losses(probs, lse);
      for (size_t i = 0; i < weights.data.size(); ++i) loss += b.dweights.data[i] * weights.data[i];
      return loss;
    };
    const auto logits = to_matrix(b.logits);
    const auto grad = cpu::ref::router_backward(logits, experts, b.dweights, b.losses);
    const std::vector<double> bound(grad.data.size(), 1e-8);  // h^2 of the third derivative, and eps |objective| / h
    EXPECT_TRUE(within(grad.data, test::numeric_gradient(objective, logits.data), bound));
  }
}

// Hugging Face's load_balancing_loss_func on one layer: E x sum over j and e of mean_t(one_hot[t, j, e]) x mean_t(p[t, e]).
TEST(Router, LoadBalancingLossIsHuggingFaces) {
  test::CpuContext ctx;
  const Routed r = route(ctx, random_tensor(ctx, {40, 6}, DType::kF32, 9), 2);
  const Tensor stats = test::tensor_of(ctx, {15}, DType::kF64, std::vector<double>(15, 0.0));
  ops::router_stats(ctx, {r.probs, r.lse, r.experts, stats});
  const auto s = to_double(stats);
  double from_stats = 0, by_definition = 0;
  for (size_t e = 0; e < 6; ++e) from_stats += 6 * (s[e] / s[14]) * (s[6 + e] / s[14]);
  const auto probs = to_matrix(r.probs);
  for (int64_t j = 0; j < 2; ++j)
    for (int64_t e = 0; e < 6; ++e) {
      double share = 0, mean = 0;
      for (int64_t t = 0; t < 40; ++t) {
        share += (choices(r.experts)(t, j) == e ? 1.0 : 0.0) / 40;
        mean += probs(t, e) / 40;
      }
      by_definition += 6 * share * mean;
    }
  EXPECT_NEAR(from_stats, by_definition, 1e-12);
}

TEST(Router, SameBitsForAnyThreads) {
  EXPECT_TRUE(test::same_for_any_threads([](Context& ctx) {
    const test::RouterBackwardCase b(ctx, {3000, 2, 8}, 0.02F, 0.001F);
    const Tensor stats = test::tensor_of(ctx, {19}, DType::kF64, std::vector<double>(19, 0.25));
    ops::router_stats(ctx, {b.routed.probs, b.routed.lse, b.routed.experts, stats});
    return std::vector{b.routed.probs, b.routed.lse, b.routed.experts, b.routed.weights, stats, b.run(ctx)};
  }));
}

TEST(Router, ChecksShapesAlsoOnMeta) {
  Context ctx = test::meta_context();
  const Tensor probs = ctx.empty({6, 4}, DType::kF32), row = ctx.empty({6}, DType::kF32),
               experts = ctx.empty({6, 2}, DType::kI32);
  const Tensor weights = ctx.empty({6, 2}, DType::kF32), stats = ctx.empty({11}, DType::kF64),
               many = ctx.empty({6, 5}, DType::kI32);
  ops::router_forward(ctx, {probs, probs, row, experts, weights});
  ops::router_stats(ctx, {probs, row, experts, stats});
  ops::router_backward(ctx, {probs, row, experts, weights, weights, stats, 0, 0, probs});
  EXPECT_THAT(error_of([&] { ops::router_forward(ctx, {probs, probs, row, weights, weights}); }),
              HasSubstr("[router_forward] experts"));
  EXPECT_THAT(error_of([&] { ops::router_forward(ctx, {probs, probs, row, many, many}); }),
              HasSubstr("[router_forward] top 5 of 4"));
  EXPECT_THAT(error_of([&] { ops::router_stats(ctx, {probs, row, experts, row}); }), HasSubstr("[router_stats] stats"));
  EXPECT_THAT(error_of([&] { ops::router_backward(ctx, {probs, row, experts, weights, row, stats, 0, 0, probs}); }),
              HasSubstr("[router_backward] dweights"));
  EXPECT_THAT(error_of([&] { ops::router_backward(ctx, {probs, row, experts, weights, weights, stats, 0, 0, weights}); }),
              HasSubstr("[router_backward] dlogits"));
}

}  // namespace
}  // namespace cistron
