#pragma once
// y = x w^T with one chain of fused multiply-adds an element, k = 0, 1, ... (in bf16 of pairs): a row's bits depend on the row
// alone, so none is padded. As fast as oneDNN where w is in cache; where it comes from memory and rows are few, as in
// generation, 1.1 to 1.8 times as fast, for w is fetched ahead.
#include <cstdint>

#include "cistron/core/dtype.h"
#include "cistron/cpu/fast/words.h"

namespace cistron::cpu {

/// Whether this build has the registers for it; elsewhere oneDNN, which finds AVX-512 when it runs, is better.
#ifdef __AVX512F__
constexpr bool kHasChainRows = true;
#else
constexpr bool kHasChainRows = false;
#endif

struct ChainRows {
  const void* x = nullptr;  // [m, k]
  const void* w = nullptr;  // [n, k]
  void* y = nullptr;        // m rows of n, ldy elements apart
  int64_t m = 0, n = 0, k = 0, ldy = 0;
  bool accumulate = false;                    // add to y
  DType in = DType::kF32, out = DType::kF32;  // bf16 needs kHasBf16Words and an even k; out bf16 needs in bf16
};
void chain_rows(const ChainRows& product);

}  // namespace cistron::cpu
