#pragma once
// y = x w^T in f32 with one chain of fused multiply-adds an element, k = 0, 1, ...: a row's bits depend on the row alone, so none
// is padded. As fast as oneDNN where w is in cache; where it comes from memory and rows are few, as in generation, 1.1 to 1.8
// times as fast, for w is fetched ahead.
#include <cstdint>

namespace cistron::cpu {

/// Whether this build has the registers for it; elsewhere oneDNN, which finds AVX-512 when it runs, is better.
#ifdef __AVX512F__
constexpr bool kHasChainRows = true;
#else
constexpr bool kHasChainRows = false;
#endif

struct ChainRows {
  const float* x = nullptr;  // [m, k]
  const float* w = nullptr;  // [n, k]
  float* y = nullptr;        // m rows of n, ldy elements apart
  int64_t m = 0, n = 0, k = 0, ldy = 0;
  bool accumulate = false;  // add to y
};
void chain_rows(const ChainRows& product);

}  // namespace cistron::cpu
