// Which cards have the products beside SwiGLU in MXFP8. Backward: the dgrad of FC2 into bf16, then one pass over it and gate and
// up that writes all three operands. (The product's own epilogue would by count take as long for them, both warpgroups would have
// to meet in it, and it would hold three tensors in registers meanwhile: bench/NOTES.md.)
#include "cistron/core/checked.h"
#include "cistron/cuda/gemm/grouped_swiglu.h"
#include "cistron/cuda/gemm/sm90_mxfp8_grouped_swiglu.h"
#include "cistron/cuda/moe/grouped_bias.h"
#include "cistron/cuda/quant/sm90_mxfp8_swiglu_backward.h"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/mxfp8_grouped_gemm.h"

namespace cistron::cuda {
namespace {

void check(const char* op, const Context& ctx) {
  const std::string refusal = mxfp8_grouped_swiglu_refusal(ctx);
  CISTRON_CHECK(refusal.empty(), "[{}] {}: use mxfp8_grouped_gemm, scaled_swiglu and mxfp8_quantize", op, refusal);
}

}  // namespace

void mxfp8_grouped_swiglu_forward(Context& ctx, const ops::Mxfp8GroupedSwigluForward& args) {
  const DeviceGuard guard(ctx);
  check("mxfp8_grouped_swiglu_forward", ctx);
  sm90::mxfp8_grouped_swiglu_forward(ctx, args);
}

void mxfp8_grouped_swiglu_backward(Context& ctx, const ops::Mxfp8GroupedSwigluBackward& args) {
  const DeviceGuard guard(ctx);
  check("mxfp8_grouped_swiglu_backward", ctx);
  mxfp8_grouped_gemm(ctx, {.x = args.dy, .w = args.w, .groups = args.groups, .out = args.d});
  sm90::mxfp8_swiglu_backward(ctx, args);
  sum_partials(ctx, args.partials, args.groups, args.dweight);
  if (args.dbias.grad.defined()) sum_bias_tiles(ctx, args.dbias_partials, args.groups, args.dbias);
}

std::string mxfp8_grouped_swiglu_refusal(const Context& ctx) {
  if (ctx.gemm == GemmKernels::kPortable) return "the portable kernels are asked for";
  if (const int card = compute_capability(ctx); card != 90)
    return fmt::format("the card is sm_{}, the kernel Hopper's (sm_90)", card);
  return "";
}

}  // namespace cistron::cuda
