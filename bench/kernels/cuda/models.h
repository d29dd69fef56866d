#pragma once
// The shapes of the four models whose training steps are compared with others (`bench/results/h200.md`), at the batches of that
// comparison.
#include <cstdint>

namespace cistron::bench {

struct ModelShape {
  const char* name;
  int64_t batch, sequence;
  int64_t hidden, heads, kv_heads, head_dim, experts, vocabulary;
  [[nodiscard]] int64_t tokens() const { return batch * sequence; }
};

constexpr ModelShape kModels[] = {
    {"mixtral-8x7b", 2, 8192, 4096, 32, 8, 128, 8, 32000},
    {"fine-grained-64", 8, 2048, 2048, 16, 4, 128, 64, 512},
    {"progen3-3b", 8, 2048, 1280, 16, 16, 80, 8, 134},
    {"genos-1.2b", 4, 8192, 1024, 16, 8, 64, 8, 128},
};

}  // namespace cistron::bench
