// MXFP8 products on the CPU: operands decoded to f32, which is exact, then the ordinary grouped products.
#include "cistron/ops/mxfp8_grouped_gemm.h"

#include "cistron/ops/elementwise.h"
#include "cistron/ops/grouped_gemm.h"
#include "cistron/ops/mxfp8_format.h"

namespace cistron::cpu {
namespace {

Tensor decode(Context& ctx, const ops::MxOperand& x) {
  Tensor out = ctx.empty(x.elements.shape(), DType::kF32);
  mxfp8_dequantize(ctx, {.x = x, .out = out});
  return out;
}

/// A transposed copy [K, R], back as [R, K].
Tensor decode_transposed(Context& ctx, const ops::MxOperand& x) {
  const int64_t rows = x.depth();
  const int64_t width = x.rows();
  Tensor out = ctx.empty({rows, width}, DType::kF32);
  const auto* elements = x.elements.data<uint8_t>();
  ctx.parallel_for(x.num_groups(), [&](int64_t group) {
    const auto* scales = x.scales.data<uint8_t>() + group * x.scales.dim(1);
    for (int64_t c = 0; c < width; ++c) {
      const float scale = ops::e8m0_to_float(scales[c]);
      for (int64_t r = group * x.group; r < (group + 1) * x.group; ++r)
        out.data<float>()[r * width + c] = ops::e4m3_to_float(elements[c * rows + r]) * scale;
    }
  });
  return out;
}

}  // namespace

void mxfp8_grouped_gemm(Context& ctx, const ops::Mxfp8GroupedGemm& args) {
  const Tensor x = decode(ctx, args.x);
  const Tensor w = decode(ctx, args.w);
  const bool in_f32 = args.out.dtype() == DType::kF32;
  const Tensor y = in_f32 ? args.out : ctx.empty(args.out.shape(), DType::kF32);
  grouped_gemm_forward(ctx, {.x = x, .w = w, .groups = args.groups, .out = y});
  if (!in_f32) cast(ctx, {.x = y, .out = args.out});
}

void mxfp8_grouped_wgrad(Context& ctx, const ops::Mxfp8GroupedWgrad& args) {
  const Tensor dy = decode_transposed(ctx, args.dy);
  const Tensor x = decode_transposed(ctx, args.x);
  grouped_gemm_wgrad(ctx, {.dy = dy, .x = x, .groups = args.groups, .out = args.out, .accumulate = args.accumulate});
}

}  // namespace cistron::cpu
