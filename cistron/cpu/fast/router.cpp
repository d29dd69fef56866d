#include "cistron/ops/router.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

constexpr int64_t kTokens = 256;  // a task's

float largest_of(const float* row, int64_t n) {
  F16 largest = splat(-std::numeric_limits<float>::infinity());
  int64_t e = 0;
  for (; e + kLanes <= n; e += kLanes) largest = load(row + e) > largest ? load(row + e) : largest;
  float most = horizontal_max(largest);
  for (; e < n; ++e) most = row[e] > most ? row[e] : most;
  return most;
}

/// Softmax of a row in place; gives its logsumexp.
float softmax(float* row, int64_t n) {
  const float largest = largest_of(row, n);
  for_lanes(n, [=](Lanes l) { l.store(row, exp(l.load(row) - largest)); });
  F16 sums{};
  for_lanes(n, [&](Lanes l) { sums += l.load(row); });
  const float sum = horizontal_sum(sums);
  for_lanes(n, [=](Lanes l) { l.store(row, l.load(row) / sum); });
  return largest + std::log(sum);
}

/// Whole numbers in the order of choice: bits of numbers >= 0 compare as they do, NaN comes after all of them, so that experts
/// stay distinct and in range, and a tie goes to the lowest expert, whose number's complement is below.
int64_t key_of(float prob, size_t expert) {
  const auto bits = static_cast<int64_t>(std::bit_cast<uint32_t>(prob)) + 1;
  return (prob >= 0.0F ? bits : 0) << 32 | (0xffffffff - static_cast<int64_t>(expert));
}

void choose(std::span<const float> probs, std::span<int32_t> chosen, std::vector<int64_t>& keys) {
  keys.resize(probs.size());
  for (size_t e = 0; e < probs.size(); ++e) keys[e] = key_of(probs[e], e);
  for (int32_t& choice : chosen) {
    int64_t most = -1;
    for (const int64_t key : keys) most = std::max(most, key);
    choice = static_cast<int32_t>(0xffffffff - (most & 0xffffffff));
    keys[static_cast<size_t>(choice)] = -1;  // taken
  }
}

void normalise(std::span<const float> probs, std::span<const int32_t> chosen, float* weights) {
  float sum = 0;
  for (size_t j = 0; j < chosen.size(); ++j) sum += probs[static_cast<size_t>(chosen[j])];
  for (size_t j = 0; j < chosen.size(); ++j) weights[j] = probs[static_cast<size_t>(chosen[j])] / sum;
}

void check_replayed(const Tensor& experts, int64_t num_experts) {
  for (int32_t e : experts.span<int32_t>())
    CISTRON_CHECK(e >= 0 && e < num_experts, "[router_forward] replayed expert {} of {}", e, num_experts);
}

/// sums[0, l.count) += v
void add_lanes(const Lanes& l, D8 first, D8 last, double* sums) {
  double values[kLanes];
  std::memcpy(values, &first, sizeof(first));
  std::memcpy(values + kLanes / 2, &last, sizeof(last));
  for (int64_t i = 0; i < l.count; ++i) sums[l.begin + i] += values[i];
}

/// Adds a token's probabilities to `sums`; gives their entropy.
double add_probs(const float* probs, int64_t n, double* sums) {
  D8 entropy{};
  for_lanes(n, [&](const Lanes& l) {
    const F16 p = l.load(probs), log_p = log(p);
    const D8 first = first_doubles(p), last = last_doubles(p);
    entropy -= first * first_doubles(log_p) + last * last_doubles(log_p);
    add_lanes(l, first, last, sums);
  });
  double sum = 0;
  for (int i = 0; i < kLanes / 2; ++i) sum += entropy[i];
  return sum;
}

/// Adds tokens [begin, end) to `sums`, laid out as `stats`.
void add_tokens(const ops::RouterStats& args, int64_t begin, int64_t end, double* sums) {
  const int64_t num_experts = args.probs.dim(1), top_k = args.experts.dim(1);
  double* totals = sums + 2 * num_experts;
  for (int64_t t = begin; t < end; ++t) {
    totals[1] += add_probs(args.probs.data<float>() + t * num_experts, num_experts, sums + num_experts);
    for (int64_t j = 0; j < top_k; ++j) sums[args.experts.data<int32_t>()[t * top_k + j]] += 1;
    const double lse = args.lse.data<float>()[t];
    totals[0] += lse * lse;
    totals[2] += 1;
  }
}

/// What the auxiliary losses add to the gradients, from the whole batch's sums.
struct AuxiliaryGradients {
  std::vector<float> dprobs;  // [E]: coefficient E f_e / N
  float dlse_per_lse = 0.0F;  // 2 coefficient / N

  explicit AuxiliaryGradients(const ops::RouterBackward& args) : dprobs(static_cast<size_t>(args.probs.dim(1)), 0.0F) {
    const auto stats = args.stats.span<double>();
    const double routings = stats.back();
    if (routings == 0) return;
    const double scale = args.aux_coefficient * static_cast<double>(dprobs.size()) / (routings * routings);
    for (size_t e = 0; e < dprobs.size(); ++e) dprobs[e] = static_cast<float>(scale * stats[e]);
    dlse_per_lse = static_cast<float>(2.0 * args.z_coefficient / routings);
  }
};

/// dlogits[e] = p[e] (dprobs[e] - sum p dprobs + dlse), and for the chosen ones + w[j] (dw[j] - sum w dw): softmax and
/// normalisation by the chosen sum cancel into one softmax over the chosen experts.
void backward_token(const ops::RouterBackward& args, const AuxiliaryGradients& aux, int64_t t) {
  const int64_t num_experts = args.probs.dim(1), top_k = args.experts.dim(1);
  const float* probs = args.probs.data<float>() + t * num_experts;
  float* dlogits = args.dlogits.data<float>() + t * num_experts;
  float mean = 0;
  for (int64_t e = 0; e < num_experts; ++e) mean += probs[e] * aux.dprobs[static_cast<size_t>(e)];
  const float dlse = aux.dlse_per_lse * args.lse.data<float>()[t];
  for (int64_t e = 0; e < num_experts; ++e) dlogits[e] = probs[e] * (aux.dprobs[static_cast<size_t>(e)] - mean + dlse);

  const auto* chosen = args.experts.data<int32_t>() + t * top_k;
  const auto* weights = args.weights.data<float>() + t * top_k;
  const auto* dweights = args.dweights.data<float>() + t * top_k;
  float dot = 0;
  for (int64_t j = 0; j < top_k; ++j) dot += weights[j] * dweights[j];
  for (int64_t j = 0; j < top_k; ++j) dlogits[chosen[j]] += weights[j] * (dweights[j] - dot);
}

}  // namespace

void router_forward(Context& ctx, const ops::RouterForward& args) {
  const auto num_experts = static_cast<size_t>(args.probs.dim(1)), top_k = static_cast<size_t>(args.experts.dim(1));
  if (args.replay) check_replayed(args.experts, args.probs.dim(1));
  if (args.probs.raw() != args.logits.raw())
    std::memcpy(args.probs.raw(), args.logits.raw(), static_cast<size_t>(args.probs.bytes()));
  for_chunks(ctx, args.probs.dim(0), kTokens, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> keys;
    for (auto t = static_cast<size_t>(begin); t < static_cast<size_t>(end); ++t) {
      const std::span<float> probs(args.probs.data<float>() + t * num_experts, num_experts);
      const std::span<int32_t> chosen(args.experts.data<int32_t>() + t * top_k, top_k);
      args.lse.data<float>()[t] = softmax(probs.data(), args.probs.dim(1));
      if (!args.replay) choose(probs, chosen, keys);
      normalise(probs, chosen, args.weights.data<float>() + t * top_k);
    }
  });
}

void router_stats(Context& ctx, const ops::RouterStats& args) {
  const int64_t tokens = args.probs.dim(0), width = args.stats.numel();
  std::vector<double> partials(static_cast<size_t>(ceil_div(tokens, kTokens) * width), 0.0);
  for_chunks(ctx, tokens, kTokens,
             [&](int64_t begin, int64_t end) { add_tokens(args, begin, end, partials.data() + begin / kTokens * width); });
  const auto stats = args.stats.span<double>();
  for (size_t i = 0; i < partials.size(); ++i) stats[i % stats.size()] += partials[i];
}

void router_backward(Context& ctx, const ops::RouterBackward& args) {
  const AuxiliaryGradients aux(args);
  for_chunks(ctx, args.probs.dim(0), kTokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) backward_token(args, aux, t);
  });
}

}  // namespace cistron::cpu
