#pragma once
// The next token from its logits, as Hugging Face's generate chooses it: temperature, then top-k, then top-p.
#include <cstdint>
#include <span>

namespace cistron::eval {

struct Sampling {
  double temperature = 1.0;  ///< 0: always the likeliest token
  int64_t top_k = 0;         ///< only the k likeliest (and what equals the k-th); 0: all
  double top_p = 1.0;        ///< only the fewest, from the likeliest on, whose probabilities reach it; 1: all
};

/// A token of [0, num_tokens); `uniform` in [0, 1) decides. Equal logits: the lower token comes first. Throws Error(kFailed)
/// where a logit is not finite.
int32_t sample(std::span<const float> logits, int64_t num_tokens, const Sampling& sampling, double uniform);

/// ln of the probability that the model itself gives `token`, whatever the sampling.
double log_probability(std::span<const float> logits, int32_t token);

}  // namespace cistron::eval
