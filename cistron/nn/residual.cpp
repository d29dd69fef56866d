#include "cistron/nn/residual.h"

#include "cistron/ops/elementwise.h"
#include "cistron/ops/mxfp8.h"

namespace cistron::nn {

void Residual::run(Context& ctx, Flow& flow, Saved& /*saved*/) const {
  if (!flow.x.defined()) return;
  const Tensor sum = ctx.empty(flow.stream.shape());
  ops::add(ctx, {.a = flow.stream, .b = flow.x, .out = sum});
  flow.stream = sum;
  flow.x = {};
}

void Residual::run_back(Context& /*ctx*/, Flow& gradient, Saved& /*saved*/) const { gradient.x = gradient.stream; }

std::string Quantize::refusal(const Context& ctx) {
  if (ctx.mx_group() == 0) return "nothing is in MXFP8";
  return ctx.mx_group() == kGroup ? "" : "with scale groups of 32 wgrad reads the norm's output in bf16";
}

void Quantize::run(Context& ctx, Flow& flow, Saved& /*saved*/) const {
  if (!refusal(ctx).empty()) return;
  flow.mx = ops::mxfp8_empty(ctx, flow.x.dim(0), flow.x.dim(1), kGroup);
  ops::mxfp8_quantize(ctx, {.x = flow.x, .out = flow.mx});
  flow.x = {};
}

void Quantize::run_back(Context& /*ctx*/, Flow& /*gradient*/, Saved& /*saved*/) const {}

}  // namespace cistron::nn
