#pragma once
// What the evaluations' tests share: a small random model, and records for it.
#include <vector>

#include "cistron/core/rng.h"
#include "cistron/model/config.h"

namespace cistron::eval {

inline model::ModelConfig tiny_model() {
  model::ModelConfig config{.layers = 2,
                            .hidden = 32,
                            .intermediate = 24,
                            .heads = 4,
                            .kv_heads = 2,
                            .experts = 4,
                            .top_k = 2,
                            .context = 16,
                            .vocabulary = 33,
                            .init_std = 0.3};
  config.validate();
  return config;
}

inline std::vector<int32_t> random_record(int64_t length, uint64_t seed) {
  const Rng rng(seed, 3);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(i), 33)));
  return tokens;
}

}  // namespace cistron::eval
