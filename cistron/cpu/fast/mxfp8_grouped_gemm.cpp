// MXFP8 products on the CPU: operands decoded to f32, which is exact, then the ordinary grouped products.
#include "cistron/ops/mxfp8_grouped_gemm.h"

#include "cistron/ops/elementwise.h"
#include "cistron/ops/grouped_gemm.h"
#include "cistron/ops/mxfp8_format.h"

namespace cistron::cpu {
namespace {

/// A transposed copy [K, R], back as [R, K].
void decode_transposed(Context& ctx, const ops::MxOperand& x, const Tensor& out) {
  const int64_t rows = x.depth();
  const int64_t width = x.rows();
  const auto* elements = x.elements.data<uint8_t>();
  ctx.parallel_for(x.num_groups(), [&](int64_t group) {
    const auto* scales = x.scales.data<uint8_t>() + group * x.scales.dim(1);
    for (int64_t c = 0; c < width; ++c) {
      const float scale = ops::e8m0_to_float(scales[c]);
      for (int64_t r = group * x.group; r < (group + 1) * x.group; ++r)
        out.data<float>()[r * width + c] = ops::e4m3_to_float(elements[c * rows + r]) * scale;
    }
  });
}

}  // namespace

void mxfp8_grouped_gemm(Context& ctx, const ops::Mxfp8GroupedGemm& args) {
  const auto& [x, w, sum] = args.decoded;
  mxfp8_dequantize(ctx, {.x = args.x, .out = x});
  mxfp8_dequantize(ctx, {.x = args.w, .out = w});
  grouped_gemm_forward(ctx, {.x = x, .w = w, .groups = args.groups, .out = sum.defined() ? sum : args.out, .bias = args.bias});
  if (sum.defined()) cast(ctx, {.x = sum, .out = args.out});
}

void mxfp8_grouped_wgrad(Context& ctx, const ops::Mxfp8GroupedWgrad& args) {
  const auto& [dy, x, sum] = args.decoded;
  decode_transposed(ctx, args.dy, dy);
  decode_transposed(ctx, args.x, x);
  grouped_gemm_wgrad(ctx, {.dy = dy, .x = x, .groups = args.groups, .out = args.out, .accumulate = args.accumulate});
}

}  // namespace cistron::cpu
