#pragma once
// One matrix product on the calling thread, by oneDNN. The only file that knows oneDNN and its two interfaces (2.x and 3.x).
#include <cstdint>

#include "cistron/core/dtype.h"

namespace cistron::cpu {

/// Whether bf16 products run in bf16 instructions (avx512_bf16, AMX). Elsewhere `gemm` refuses bf16 operands.
bool has_fast_bf16();
/// Whether they run in AMX's tiles.
bool has_amx();

/// c[m, n] = op(a) op(b), row-major with leading dimensions; op(a) is [m, k]: a itself, or the transpose of a [k, m].
/// Operands f32 or bf16 (both the same), c their dtype or f32; sums in f32. m, n, k > 0.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;  ///< add to c, which must be f32
  DType in = DType::kF32, out = DType::kF32;
  friend bool operator==(const Gemm&, const Gemm&) = default;
};

/// Any thread may call it at any time. Each thread keeps what oneDNN generated for the shapes it has seen, so callers keep the
/// number of distinct shapes small. In f32 a row of c has the same bits for every m, as long as m is a multiple of 16 and the
/// leading dimensions stay; without AVX-512 oneDNN does not hold that and `chain_gemm` runs instead. Throws Error(kUsage) for
/// bf16 where `has_fast_bf16()` is false.
void gemm(const Gemm& shape, const void* a, const void* b, void* c);

}  // namespace cistron::cpu
