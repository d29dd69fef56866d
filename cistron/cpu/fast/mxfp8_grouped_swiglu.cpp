// The definition, step by step: what a card does in one launch or two.
#include "cistron/ops/mxfp8_grouped_swiglu.h"

#include "cistron/ops/swiglu.h"

namespace cistron::cpu {

void mxfp8_grouped_swiglu_forward(Context& ctx, const ops::Mxfp8GroupedSwigluForward& args) {
  mxfp8_grouped_gemm(ctx, {.x = args.x,
                           .w = args.w,
                           .groups = args.groups,
                           .out = args.gate_up,
                           .bias = {.values = args.bias},
                           .decoded = args.product});
  scaled_swiglu_forward(ctx, {.gate_up = args.gate_up, .groups = args.groups, .out = args.values});
  const ops::MxTensor act{.rows = args.act, .columns = {}};
  mxfp8_quantize(ctx, {.x = args.values, .out = act, .starts = args.groups.starts});
}

void mxfp8_grouped_swiglu_backward(Context& ctx, const ops::Mxfp8GroupedSwigluBackward& args) {
  mxfp8_grouped_gemm(ctx, {.x = args.dy, .w = args.w, .groups = args.groups, .out = args.d, .decoded = args.product});
  scaled_swiglu_backward(ctx, {args.d, args.gate_up, args.groups, args.values, args.dweight});
  if (args.dbias.grad.defined())
    grouped_bias_backward(ctx, {.dy = args.values, .bias = {}, .groups = args.groups, .dbias = args.dbias});
  mxfp8_quantize(ctx, {.x = args.values, .out = args.dgate_up, .starts = args.groups.starts});
  scaled_swiglu_forward(ctx, {.gate_up = args.gate_up, .groups = args.groups, .out = args.d});
  const ops::MxTensor act{.rows = {}, .columns = args.act};
  mxfp8_quantize(ctx, {.x = args.d, .out = act, .starts = args.groups.starts});
}

}  // namespace cistron::cpu
