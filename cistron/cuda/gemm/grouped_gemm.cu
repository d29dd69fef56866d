// Which kernels run the grouped products: by the card, the dtype and `ctx.gemm`; on the context's card. No device code; `.cu`
// since it needs nvcc's build.
#include "cistron/cuda/gemm/portable.h"
#include "cistron/cuda/gemm/sm90_grouped_gemm.h"
#include "cistron/cuda/moe/grouped_bias.h"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {
namespace {

/// wgmma and the bulk copy engine are Hopper's alone: not 8.x, and not what came after.
bool on_hopper(const Context& ctx) { return ctx.gemm == GemmKernels::kAuto && compute_capability(ctx) == 90; }
bool hopper_takes(const Context& ctx, const Tensor& operand) { return operand.dtype() == DType::kBF16 && on_hopper(ctx); }

/// In a pass of its own, after the portable kernels.
template <class Product>
void add_bias(Context& ctx, const Product& args) {
  if (args.bias.values.defined()) add_grouped_bias(ctx, args.bias, args.groups, args.out);
}

}  // namespace

void grouped_gemm_forward(Context& ctx, const ops::GroupedGemmForward& args) {
  const DeviceGuard guard(ctx);
  if (hopper_takes(ctx, args.x)) return sm90::grouped_gemm_forward(ctx, args);
  portable::grouped_gemm_forward(ctx, args);
  add_bias(ctx, args);
}

void grouped_gemm_dgrad(Context& ctx, const ops::GroupedGemmDgrad& args) {
  const DeviceGuard guard(ctx);
  hopper_takes(ctx, args.dy) ? sm90::grouped_gemm_dgrad(ctx, args) : portable::grouped_gemm_dgrad(ctx, args);
}

void grouped_gemm_wgrad(Context& ctx, const ops::GroupedGemmWgrad& args) {
  const DeviceGuard guard(ctx);
  hopper_takes(ctx, args.x) ? sm90::grouped_gemm_wgrad(ctx, args) : portable::grouped_gemm_wgrad(ctx, args);
}

bool mxfp8_products_decode(const Context& ctx) { return !on_hopper(ctx); }

void mxfp8_grouped_gemm(Context& ctx, const ops::Mxfp8GroupedGemm& args) {
  const DeviceGuard guard(ctx);
  if (on_hopper(ctx)) return sm90::mxfp8_grouped_gemm(ctx, args);
  portable::mxfp8_grouped_gemm(ctx, args);
  add_bias(ctx, args);
}

void mxfp8_grouped_wgrad(Context& ctx, const ops::Mxfp8GroupedWgrad& args) {
  const DeviceGuard guard(ctx);
  CISTRON_CHECK(args.dy.group == 128, "[mxfp8_grouped_wgrad] scale groups of {}: with group 32 use the bf16 grouped_gemm_wgrad",
                args.dy.group);
  on_hopper(ctx) ? sm90::mxfp8_grouped_wgrad(ctx, args) : portable::mxfp8_grouped_wgrad(ctx, args);
}

}  // namespace cistron::cuda
