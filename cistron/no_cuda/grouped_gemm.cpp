#include "cistron/ops/grouped_gemm.h"

#include "cistron/ops/dispatch.h"
#include "cistron/ops/mxfp8_grouped_gemm.h"

namespace cistron::cuda {

void grouped_gemm_forward(Context& ctx, const ops::GroupedGemmForward&) {
  ops::throw_no_backend("grouped_gemm_forward", ctx.device);
}
void grouped_gemm_dgrad(Context& ctx, const ops::GroupedGemmDgrad&) { ops::throw_no_backend("grouped_gemm_dgrad", ctx.device); }
void grouped_gemm_wgrad(Context& ctx, const ops::GroupedGemmWgrad&) { ops::throw_no_backend("grouped_gemm_wgrad", ctx.device); }
/// The most that a card may need.
bool mxfp8_products_decode(const Context&) { return true; }
void mxfp8_grouped_gemm(Context& ctx, const ops::Mxfp8GroupedGemm&) { ops::throw_no_backend("mxfp8_grouped_gemm", ctx.device); }
void mxfp8_grouped_wgrad(Context& ctx, const ops::Mxfp8GroupedWgrad&) {
  ops::throw_no_backend("mxfp8_grouped_wgrad", ctx.device);
}

}  // namespace cistron::cuda
