#include "cistron/ops/mxfp8.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void mxfp8_quantize(Context& ctx, const ops::Mxfp8Quantize&) { ops::throw_no_backend("mxfp8_quantize", ctx.device); }
void mxfp8_quantize_weights(Context& ctx, const ops::Mxfp8QuantizeWeights&) {
  ops::throw_no_backend("mxfp8_quantize_weights", ctx.device);
}
void mxfp8_dequantize(Context& ctx, const ops::Mxfp8Dequantize&) { ops::throw_no_backend("mxfp8_dequantize", ctx.device); }

}  // namespace cistron::cuda
