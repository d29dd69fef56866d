#pragma once
// The grouped products of `ops/grouped_gemm.h` and `ops/mxfp8_grouped_gemm.h` for any card since sm_80: f32 on ordinary cores,
// bf16 by mma.sync, MXFP8 decoded to bf16 (exact down to 2^-133) and multiplied as that. The oracle on the card for the kernels
// of one architecture. Groups are read on the device alone; pad rows of operands are not used, except that a transposed MXFP8
// copy must hold zeros there. bf16 wants widths that are multiples of 8.
#include "cistron/ops/grouped_gemm.h"
#include "cistron/ops/mxfp8_grouped_gemm.h"

namespace cistron::cuda::portable {
void grouped_gemm_forward(Context& ctx, const ops::GroupedGemmForward& args);
void grouped_gemm_dgrad(Context& ctx, const ops::GroupedGemmDgrad& args);
void grouped_gemm_wgrad(Context& ctx, const ops::GroupedGemmWgrad& args);
void mxfp8_grouped_gemm(Context& ctx, const ops::Mxfp8GroupedGemm& args);
void mxfp8_grouped_wgrad(Context& ctx, const ops::Mxfp8GroupedWgrad& args);
}  // namespace cistron::cuda::portable
