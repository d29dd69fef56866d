#include "cistron/ops/router.h"

#include <gmock/gmock.h>

#include <limits>
#include <set>

#include "cistron/cpu/ref/router.h"
#include "tests/ops/routing_support.h"

namespace cistron {
namespace {

using cpu::ref::Matrix;
using test::error_of, test::poisoned, test::random_tensor, test::same_bits, test::to_double, test::to_matrix, test::within;
using testing::HasSubstr;

constexpr double kU = 0x1p-24;

struct Case {
  int64_t tokens, top_k, experts;
  double scale = 1.0;  // of the logits
};
constexpr Case kCases[] = {{1, 1, 1},  {1, 2, 8},    {50, 4, 4}, {300, 2, 8, 5.0},
                           {37, 1, 5}, {257, 8, 65}, {0, 1, 2},  {9, 2, 17, 60.0}};

struct Routed {
  Tensor probs, lse, experts, weights;
  Routed(const Context& ctx, int64_t tokens, int64_t top_k, int64_t num_experts)
      : probs(poisoned(ctx, {tokens, num_experts}, DType::kF32)),
        lse(poisoned(ctx, {tokens}, DType::kF32)),
        experts(poisoned(ctx, {tokens, top_k}, DType::kI32)),
        weights(poisoned(ctx, {tokens, top_k}, DType::kF32)) {}
};

Routed route(Context& ctx, const Tensor& logits, int64_t top_k) {
  Routed r(ctx, logits.dim(0), top_k, logits.dim(1));
  ops::router_forward(ctx, {logits, r.probs, r.lse, r.experts, r.weights});
  return r;
}

Matrix<int32_t> choices(const Tensor& experts) { return {experts.dim(0), experts.dim(1), test::ints(experts)}; }

/// Relative error of p[t, e]: rounding of the exponent (up to the logits' spread), exp to 4 u, E additions, a quotient.
double relative(const Matrix<double>& logits, int64_t t) {
  const auto begin = logits.data.begin() + t * logits.cols;
  const auto [low, high] = std::minmax_element(begin, begin + logits.cols);
  return (*high - *low + 2.0 * static_cast<double>(logits.cols) + 8) * kU;
}

TEST(Router, ForwardMatchesTheReference) {
  test::CpuContext ctx(2);
  for (const auto& [tokens, top_k, experts, scale] : kCases) {
    const Tensor logits = random_tensor(ctx, {tokens, experts}, DType::kF32, 1, scale);
    const auto exact = to_matrix(logits);
    const Routed got = route(ctx, logits, top_k);
    EXPECT_EQ(test::ints(got.experts), cpu::ref::top_k(to_matrix(got.probs), top_k).data);
    std::vector<double> lse, lse_bound, p_bound, w_bound;
    const auto probs = cpu::ref::router_probs(exact, &lse);
    const auto weights = cpu::ref::routing_weights(probs, choices(got.experts));
    for (int64_t t = 0; t < tokens; ++t) {
      const double rel = relative(exact, t);
      for (int64_t e = 0; e < experts; ++e) p_bound.push_back(rel * probs(t, e) + 0x1p-126);
      for (int64_t j = 0; j < top_k; ++j)
        w_bound.push_back((2 * rel + static_cast<double>(top_k + 1) * kU) * weights(t, j) + 0x1p-126);
      lse_bound.push_back(rel + 2 * kU * (std::log(static_cast<double>(experts)) + std::abs(lse[static_cast<size_t>(t)])));
    }
    EXPECT_TRUE(within(got.probs, probs.data, p_bound));
    EXPECT_TRUE(within(got.weights, weights.data, w_bound));
    EXPECT_TRUE(within(got.lse, lse, lse_bound));
    if (tokens == 0 || top_k == experts || scale > 10) continue;  // the chosen ones are all there is
    auto unnormalised = weights;                                  // control
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t j = 0; j < top_k; ++j) unnormalised(t, j) = probs(t, choices(got.experts)(t, j));
    EXPECT_FALSE(within(got.weights, unnormalised.data, w_bound));
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

/// stats of one layer, from the definition.
std::vector<double> stats_of(const Matrix<double>& probs, const std::vector<double>& lse, const Matrix<int32_t>& experts) {
  const auto num = static_cast<size_t>(probs.cols);
  std::vector<double> stats(2 * num + 3, 0.0);
  for (int32_t e : experts.data) stats[static_cast<size_t>(e)] += 1;
  for (int64_t t = 0; t < probs.rows; ++t) {
    for (int64_t e = 0; e < probs.cols; ++e) {
      stats[num + static_cast<size_t>(e)] += probs(t, e);
      if (probs(t, e) > 0) stats[2 * num + 1] -= probs(t, e) * std::log(probs(t, e));
    }
    stats[2 * num] += lse[static_cast<size_t>(t)] * lse[static_cast<size_t>(t)];
    stats[2 * num + 2] += 1;
  }
  return stats;
}

TEST(Router, StatsAddUp) {
  test::CpuContext ctx(2);
  for (const auto& [tokens, top_k, experts, scale] : kCases) {
    const Routed r = route(ctx, random_tensor(ctx, {tokens, experts}, DType::kF32, 5, scale), top_k);
    auto want = stats_of(to_matrix(r.probs), to_double(r.lse), choices(r.experts));
    const Tensor stats = test::tensor_of(ctx, {2 * experts + 3}, DType::kF64, std::vector<double>(want.size(), 1.0));
    ops::router_stats(ctx, {r.probs, r.lse, r.experts, stats});
    std::vector<double> bound;
    for (double& x : want) {
      x += 1;
      bound.push_back(x * static_cast<double>(tokens + 1) * 0x1p-52);
    }
    bound[bound.size() - 2] += 2 * kU * want[want.size() - 2];  // logarithms in f32
    EXPECT_TRUE(within(stats, want, bound));
    want[0] += 1;
    EXPECT_FALSE(within(stats, want, bound));
  }
}

/// A routing with upstream gradients, for the backward.
struct BackwardCase {
  Tensor logits;
  Routed routed;
  Tensor upstream, stats;  // of the weights
  Matrix<double> dweights;
  cpu::ref::RouterLosses<double> losses;

  BackwardCase(Context& ctx, const Case& c, float aux, float z)
      : logits(random_tensor(ctx, {c.tokens, c.experts}, DType::kF32, 6, c.scale)),
        routed(route(ctx, logits, c.top_k)),
        upstream(random_tensor(ctx, {c.tokens, c.top_k}, DType::kF32, 7)),
        dweights(to_matrix(upstream)) {
    // a batch of several layers: more choices and routings than this layer's
    auto sums = to_double(random_tensor(ctx, {2 * c.experts + 3}, DType::kF64, 8));
    for (double& x : sums) x = std::floor(100 * std::abs(x));
    sums.back() = static_cast<double>(3 * c.tokens + 1);
    stats = test::tensor_of(ctx, {2 * c.experts + 3}, DType::kF64, sums);
    losses = {{sums.begin(), sums.begin() + c.experts}, sums.back(), aux, z};
  }
  [[nodiscard]] Tensor run(Context& ctx) const {
    const Tensor dlogits = poisoned(ctx, logits.shape(), DType::kF32);
    ops::router_backward(ctx, {.probs = routed.probs,
                               .lse = routed.lse,
                               .experts = routed.experts,
                               .weights = routed.weights,
                               .dweights = upstream,
                               .stats = stats,
                               .aux_coefficient = static_cast<float>(losses.aux_coefficient),
                               .z_coefficient = static_cast<float>(losses.z_coefficient),
                               .dlogits = dlogits});
    return dlogits;
  }
  /// The sums of magnitudes that each gradient is made of, times the relative error of probabilities and of a few operations.
  [[nodiscard]] std::vector<double> bound() const {
    std::vector<double> lse, bound;
    const auto exact = to_matrix(logits);
    const auto probs = cpu::ref::router_probs(exact, &lse);
    const auto weights = cpu::ref::routing_weights(probs, choices(routed.experts));
    for (int64_t t = 0; t < probs.rows; ++t) {
      const double rel = 4 * relative(exact, t) + static_cast<double>(probs.cols) * kU;
      double mean = 0, dot = 0;
      const auto aux = [&](int64_t e) {
        return losses.aux_coefficient * static_cast<double>(probs.cols) * losses.choices[static_cast<size_t>(e)] /
               (losses.routings * losses.routings);
      };
      for (int64_t e = 0; e < probs.cols; ++e) mean += probs(t, e) * aux(e);
      for (int64_t j = 0; j < weights.cols; ++j) dot += weights(t, j) * std::abs(dweights(t, j));
      const double dlse = 2 * losses.z_coefficient * (std::abs(lse[static_cast<size_t>(t)]) + 1) / losses.routings;
      const double oracle = 0x1p-50 * dot;  // the reference's own sums cancel in f64
      for (int64_t e = 0; e < probs.cols; ++e)
        bound.push_back(rel * probs(t, e) * (aux(e) + mean + dlse) + oracle * probs(t, e) + 0x1p-126);
      for (int64_t j = 0; j < weights.cols; ++j)
        bound[static_cast<size_t>(t * probs.cols + choices(routed.experts)(t, j))] +=
            rel * weights(t, j) * (std::abs(dweights(t, j)) + dot) + oracle;
    }
    return bound;
  }
};

TEST(Router, BackwardMatchesTheReference) {
  test::CpuContext ctx(2);
  for (const Case& c : kCases)
    for (const auto& [aux, z] : {std::pair(0.0F, 0.0F), std::pair(0.5F, 0.0F), std::pair(0.0F, 0.1F), std::pair(0.02F, 0.001F)}) {
      const BackwardCase b(ctx, c, aux, z);
      const auto want = cpu::ref::router_backward(to_matrix(b.logits), choices(b.routed.experts), b.dweights, b.losses);
      EXPECT_TRUE(within(b.run(ctx), want.data, b.bound()));
    }
}

TEST(Router, BackwardMissesNoTerm) {
  test::CpuContext ctx;
  const BackwardCase b(ctx, {50, 2, 8}, 0.5F, 0.1F);
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
  for (const Case& c : {Case{6, 2, 5}, Case{3, 4, 4}, Case{4, 1, 3}, Case{2, 1, 1}}) {
    const BackwardCase b(ctx, c, 0.7F, 0.2F);
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
    const BackwardCase b(ctx, {3000, 2, 8}, 0.02F, 0.001F);
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
