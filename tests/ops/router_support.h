#pragma once
// What the router's tests share on the CPU and on a card: cases, the reference's answers and the bounds of their differences.
#include "cistron/cpu/ref/router.h"
#include "cistron/ops/router.h"
#include "tests/ops/routing_support.h"

namespace cistron::test {

struct RouterCase {
  int64_t tokens, top_k, experts;
  double scale = 1.0;  // of the logits
};
inline std::vector<RouterCase> router_cases() {
  return {{1, 1, 1}, {1, 2, 8}, {50, 4, 4}, {300, 2, 8, 5.0}, {37, 1, 5}, {257, 8, 65}, {0, 1, 2}, {9, 2, 17, 60.0}};
}

struct Routed {
  Tensor probs, lse, experts, weights;
  Routed() = default;
  Routed(const Context& ctx, int64_t tokens, int64_t top_k, int64_t num_experts)
      : probs(poisoned(ctx, {tokens, num_experts}, DType::kF32)),
        lse(poisoned(ctx, {tokens}, DType::kF32)),
        experts(poisoned(ctx, {tokens, top_k}, DType::kI32)),
        weights(poisoned(ctx, {tokens, top_k}, DType::kF32)) {}
};

inline Routed route(Context& ctx, const Tensor& logits, int64_t top_k) {
  Routed r(ctx, logits.dim(0), top_k, logits.dim(1));
  ops::router_forward(ctx, {logits, r.probs, r.lse, r.experts, r.weights});
  return r;
}

inline cpu::ref::Matrix<int32_t> choices(const Tensor& experts) { return {experts.dim(0), experts.dim(1), ints(experts)}; }

/// Relative error of p[t, e]: rounding of the exponent (up to the logits' spread), exp to 4 u, E additions, a quotient.
inline double relative(const cpu::ref::Matrix<double>& logits, int64_t t) {
  const auto begin = logits.data.begin() + t * logits.cols;
  const auto [low, high] = std::minmax_element(begin, begin + logits.cols);
  return (*high - *low + 2.0 * static_cast<double>(logits.cols) + 8) * 0x1p-24;
}

/// Against the reference in f64. Experts must be the largest of `got`'s own probabilities. `normalised` false: a wrong reference.
inline testing::AssertionResult forward_within(const Routed& got, const Tensor& logits, bool normalised = true) {
  const auto exact = to_matrix(logits);
  const auto experts = choices(got.experts);
  if (experts.data != cpu::ref::top_k(to_matrix(got.probs), experts.cols).data)
    return testing::AssertionFailure() << "not the largest probabilities";
  std::vector<double> lse, lse_bound, p_bound, w_bound;
  const auto probs = cpu::ref::router_probs(exact, &lse);
  auto weights = cpu::ref::routing_weights(probs, experts);
  for (int64_t t = 0; t < exact.rows; ++t) {
    const double rel = relative(exact, t);
    for (int64_t e = 0; e < exact.cols; ++e) p_bound.push_back(rel * probs(t, e) + 0x1p-126);
    for (int64_t j = 0; j < experts.cols; ++j) {
      w_bound.push_back((2 * rel + static_cast<double>(experts.cols + 1) * 0x1p-24) * weights(t, j) + 0x1p-126);
      if (!normalised) weights(t, j) = probs(t, experts(t, j));
    }
    lse_bound.push_back(rel + 0x1p-23 * (std::log(static_cast<double>(exact.cols)) + std::abs(lse[static_cast<size_t>(t)])));
  }
  if (auto same = within(got.probs, probs.data, p_bound); !same) return same << " (probs)";
  if (auto same = within(got.weights, weights.data, w_bound); !same) return same << " (weights)";
  return within(got.lse, lse, lse_bound) << " (lse)";
}

/// stats of one layer, from the definition.
inline std::vector<double> stats_of(const cpu::ref::Matrix<double>& probs, const std::vector<double>& lse,
                                    const cpu::ref::Matrix<int32_t>& experts) {
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

/// A routing with upstream gradients, for the backward.
struct RouterBackwardCase {
  Tensor logits;
  Routed routed;
  Tensor upstream, stats;  // of the weights
  cpu::ref::Matrix<double> dweights;
  cpu::ref::RouterLosses<double> losses;

  RouterBackwardCase(Context& ctx, const RouterCase& c, float aux, float z)
      : logits(random_tensor(ctx, {c.tokens, c.experts}, DType::kF32, 6, c.scale)),
        routed(route(ctx, logits, c.top_k)),
        upstream(random_tensor(ctx, {c.tokens, c.top_k}, DType::kF32, 7)),
        dweights(to_matrix(upstream)) {
    // a batch of several layers: more choices and routings than this layer's
    auto sums = to_double(random_tensor(ctx, {2 * c.experts + 3}, DType::kF64, 8));
    for (double& x : sums) x = std::floor(100 * std::abs(x));
    sums.back() = static_cast<double>(3 * c.tokens + 1);
    stats = tensor_of(ctx, {2 * c.experts + 3}, DType::kF64, sums);
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
      const double rel = 4 * relative(exact, t) + static_cast<double>(probs.cols) * 0x1p-24;
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

}  // namespace cistron::test
