#include "cistron/eval/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cistron/core/error.h"

namespace cistron::eval {

namespace {

struct Candidate {
  int32_t token;
  double weight;  // the logit's distance from the largest over the temperature, then the probability times a constant
};

// Likeliest first.
std::vector<Candidate> candidates(std::span<const float> logits, double temperature) {
  const double largest = *std::ranges::max_element(logits);
  std::vector<Candidate> all;
  for (const float logit : logits) all.push_back({static_cast<int32_t>(all.size()), (logit - largest) / temperature});
  std::ranges::stable_sort(all, std::greater{}, &Candidate::weight);
  return all;
}

void keep_top_k(std::vector<Candidate>& all, int64_t k) {
  if (k <= 0 || k >= std::ssize(all)) return;
  const double least = all[static_cast<size_t>(k) - 1].weight;
  std::erase_if(all, [&](const Candidate& c) { return c.weight < least; });
}

void exponentiate(std::vector<Candidate>& all) {
  for (auto& c : all) c.weight = std::exp(c.weight);
}

double total(const std::vector<Candidate>& all) {
  return std::accumulate(all.begin(), all.end(), 0.0, [](double sum, const Candidate& c) { return sum + c.weight; });
}

void keep_top_p(std::vector<Candidate>& all, double p) {
  const double enough = p * total(all);
  size_t kept = 0;
  for (double sum = 0; kept < all.size() && (kept == 0 || sum < enough); ++kept) sum += all[kept].weight;
  all.resize(kept);
}

int32_t draw(const std::vector<Candidate>& all, double uniform) {
  const double at = uniform * total(all);
  double sum = 0;
  for (const auto& c : all)
    if ((sum += c.weight) > at) return c.token;
  return all.back().token;  // rounding
}

}  // namespace

int32_t sample(std::span<const float> logits, int64_t num_tokens, const Sampling& sampling, double uniform) {
  if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }))
    throw Error(ErrorKind::kFailed, "the model gives numbers that are not finite", "generation", "use an earlier checkpoint");
  const auto allowed = logits.first(static_cast<size_t>(num_tokens));
  if (sampling.temperature == 0) return static_cast<int32_t>(std::ranges::max_element(allowed) - allowed.begin());
  auto all = candidates(allowed, sampling.temperature);
  keep_top_k(all, sampling.top_k);
  exponentiate(all);
  if (sampling.top_p < 1) keep_top_p(all, sampling.top_p);
  return draw(all, uniform);
}

double log_probability(std::span<const float> logits, int32_t token) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return logits[static_cast<size_t>(token)] - largest - std::log(sum);
}

}  // namespace cistron::eval
