#pragma once
// The grouped products of `ops/grouped_gemm.h` (bf16) and `ops/mxfp8_grouped_gemm.h` on Hopper (sm_90a): one launch for all
// experts, groups read on the device alone. Segments start at multiples of 128 rows; pad rows of wgrad's operands hold zeros.
// Outputs bf16 or f32. Widths are multiples of 8 (bf16); of MXFP8, contractions of 128 and columns of the scale group, but any
// multiples of 16 for weight gradients.
#include "cistron/ops/grouped_gemm.h"
#include "cistron/ops/mxfp8_grouped_gemm.h"

namespace cistron::cuda::sm90 {
void grouped_gemm_forward(Context& ctx, const ops::GroupedGemmForward& args);
void grouped_gemm_dgrad(Context& ctx, const ops::GroupedGemmDgrad& args);
/// `args.out` f32, or bf16 when it does not accumulate.
void grouped_gemm_wgrad(Context& ctx, const ops::GroupedGemmWgrad& args);
void mxfp8_grouped_gemm(Context& ctx, const ops::Mxfp8GroupedGemm& args);
void mxfp8_grouped_wgrad(Context& ctx, const ops::Mxfp8GroupedWgrad& args);
}  // namespace cistron::cuda::sm90
