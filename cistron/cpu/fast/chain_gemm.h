#pragma once
#include "cistron/cpu/fast/onednn.h"

namespace cistron::cpu {

/// The f32 `Gemm` with one chain of fused multiply-adds an element, k = 0, 1, ...: an element's bits depend on its row of a and
/// its column of b alone. For processors where oneDNN's do not (without AVX-512 they change with a row's place). Written for
/// AVX2: six rows by two registers of columns.
void chain_gemm(const Gemm& shape, const float* a, const float* b, float* c);

}  // namespace cistron::cpu
