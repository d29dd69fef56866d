#pragma once
// One dense product, and the kernels that can run it. Which one does is decided in dense.cu, by dtype, shape and card.
//   out[m, n] (+)= sum over k of A(m, k) B(n, k)
#include "cistron/core/context.h"

namespace cistron::cuda {

/// Lines of `pitch` elements, along the contraction (element (line, k) at line x pitch + k) or across it (k x pitch + line).
struct DenseOperand {
  const void* data = nullptr;
  int64_t pitch = 0;
  bool along = true;
};

struct DenseProduct {
  DType in = DType::kF32;  // f32 or bf16
  DenseOperand a, b;       // along and along, along and across, or across and across
  void* out = nullptr;
  DType out_dtype = DType::kF32;
  int64_t out_pitch = 0;
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;  // f32 out only
  /// ops::dense_workspace(ctx): partial sums, where few tiles have a long contraction.
  void* workspace = nullptr;
};

/// Any sizes, 0 included. Deterministic: the order of sums depends on the sizes, on where the operands lie, and on whether
/// cuBLASLt is there, alone.
void dense_product(Context& ctx, const DenseProduct& p);

/// On ordinary cores in f32: any dtypes, pitches and sizes.
void simt_dense(Context& ctx, const DenseProduct& p);

/// f32 with at most 16 columns: bounded by reading A once.
bool skinny_takes(const DenseProduct& p);
void skinny_dense(Context& ctx, const DenseProduct& p);

namespace sm90 {
/// bf16 by wgmma: pitches of 16 bytes; adds only where the contraction goes across both operands.
bool dense_takes(const DenseProduct& p);
void dense(Context& ctx, const DenseProduct& p);
}  // namespace sm90

namespace portable {
/// bf16 by mma.sync: the same, contractions along an operand in multiples of 8, out without gaps and in columns of 8.
bool dense_takes(const DenseProduct& p);
void dense(Context& ctx, const DenseProduct& p);
}  // namespace portable

}  // namespace cistron::cuda
