// Which cards have the fused products, and the sum that ends the backward.
#include "cistron/core/checked.h"
#include "cistron/cuda/gemm/grouped_swiglu.h"
#include "cistron/cuda/gemm/sm90_grouped_swiglu.h"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {
namespace {

/// A thread a row.
__global__ void sum_partials_kernel(const float* partials, const int32_t* source_row, const int32_t* end, int tiles, int rows,
                                    float* dweight, bool accumulate) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows || row >= *end) return;
  const bool pad = source_row[row] < 0;
  float sum = 0;
  if (!pad)
    for (int i = 0; i < tiles; ++i) sum += partials[static_cast<int64_t>(i) * rows + row];
  dweight[row] = accumulate && !pad ? dweight[row] + sum : sum;
}

void check(const char* op, const Context& ctx, const Tensor& x, int64_t intermediate) {
  const std::string refusal = grouped_swiglu_refusal(ctx, x.dim(1), intermediate);
  CISTRON_CHECK(x.dtype() == DType::kBF16 && refusal.empty(), "[{}] operands of {}; {}: use grouped_gemm and scaled_swiglu", op,
                name_of(x.dtype()), refusal.empty() ? "bf16 wanted" : refusal);
}

}  // namespace

void sum_partials(Context& ctx, const Tensor& partials, const ops::Groups& groups, const Tensor& dweight, bool accumulate) {
  constexpr int kThreads = 256;
  const int tiles = narrow<int>(partials.dim(0)), rows = narrow<int>(partials.dim(1));
  const int32_t* end = groups.starts.data<int32_t>() + groups.num_experts();
  sum_partials_kernel<<<narrow<unsigned>(ceil_div(rows, kThreads)), kThreads, 0, stream(ctx)>>>(
      partials.data<float>(), groups.source_row.data<int32_t>(), end, tiles, rows, dweight.data<float>(), accumulate);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

void grouped_swiglu_forward(Context& ctx, const ops::GroupedSwigluForward& args) {
  const DeviceGuard guard(ctx);
  check("grouped_swiglu_forward", ctx, args.x, args.act.dim(1));
  sm90::grouped_swiglu_forward(ctx, args);
}

void grouped_swiglu_backward(Context& ctx, const ops::GroupedSwigluBackward& args) {
  const DeviceGuard guard(ctx);
  check("grouped_swiglu_backward", ctx, args.dy, args.act.dim(1));
  sm90::grouped_swiglu_backward(ctx, args);
  sum_partials(ctx, args.partials, args.groups, args.dweight);
}

std::string grouped_swiglu_refusal(const Context& ctx, int64_t hidden, int64_t intermediate) {
  if (ctx.activation_dtype() != DType::kBF16) return "only bf16 has a fused kernel on CUDA";
  if (ctx.gemm == GemmKernels::kPortable) return "the portable kernels are asked for";
  if (const int card = compute_capability(ctx); card != 90)
    return fmt::format("the card is sm_{}, the kernel Hopper's (sm_90)", card);
  if (hidden % 8 != 0 || intermediate % 8 != 0)
    return fmt::format("widths {} and {} are not multiples of 8", hidden, intermediate);
  return "";
}

}  // namespace cistron::cuda
