#pragma once
// dw = dy^T x in bf16 with one chain of vdpbf16ps an element, over pairs of rows 0, 1, ...: no rows are padded and dw is written
// once, so that an expert's few hundred rows, any number of them, cost no more than as many of a long contraction.
#include <cstdint>

#include "cistron/core/bf16.h"

namespace cistron::cpu {

struct ChainOuter {
  const bf16* dy = nullptr;  // [rows, n], lddy elements apart
  const bf16* x = nullptr;   // [rows, k], ldx elements apart
  float* dw = nullptr;       // [n, k], lddw elements apart
  int64_t rows = 0, n = 0, k = 0, lddy = 0, ldx = 0, lddw = 0;
  bool accumulate = false;  // add to dw
};
/// Needs kHasBf16Words (words.h). Without rows dw becomes zero, or stays.
void chain_outer(const ChainOuter& product);

}  // namespace cistron::cpu
