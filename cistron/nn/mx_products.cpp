#include "cistron/nn/mx_products.h"

#include "cistron/nn/local_parameters.h"
#include "cistron/nn/mx_report.h"
#include "cistron/ops/grouped_gemm.h"
#include "cistron/ops/mxfp8_grouped_gemm.h"

namespace cistron::nn {

namespace {

bool wgrad_in_mxfp8(const Context& ctx) { return ctx.mx_group() == 128; }

/// The row-wise copy and, where wgrad contracts it, the column-wise one.
MxTensor quantized(Context& ctx, const Tensor& x, const ops::Groups& groups) {
  const MxTensor copies = ops::mxfp8_empty(ctx, x.dim(0), x.dim(1), ctx.mx_group(), {.columns = wgrad_in_mxfp8(ctx)});
  ops::mxfp8_quantize(ctx, {.x = x, .out = copies, .starts = groups.starts});
  return copies;
}

Tensor product(Context& ctx, const Parameter& w, const MxOperand& x, const ops::Groups& groups, const ops::ExpertBias& bias) {
  report_underflow(ctx, kMxActivations, x, groups);
  Tensor y = ctx.empty({x.rows(), w.shape[w.shape.rank() - 2]});
  ops::mxfp8_grouped_gemm(ctx, {.x = x, .w = ctx.mx_weights(w, MxCopy::kRows), .groups = groups, .out = y, .bias = bias});
  return y;
}

}  // namespace

Tensor mx_forward(Context& ctx, const Parameter& w, const Tensor& x, const ops::Groups& groups, Saved& saved,
                  const ops::ExpertBias& bias) {
  const MxTensor copies = quantized(ctx, x, groups);
  if (wgrad_in_mxfp8(ctx)) return mx_forward(ctx, w, copies, groups, saved, bias);
  saved.push("mx.x", x);
  return product(ctx, w, copies.rows, groups, bias);
}

Tensor mx_forward(Context& ctx, const Parameter& w, const MxTensor& x, const ops::Groups& groups, Saved& saved,
                  const ops::ExpertBias& bias) {
  saved.push("mx.x", x.columns);
  return product(ctx, w, x.rows, groups, bias);
}

Tensor mx_backward(Context& ctx, const Parameter& w, const Tensor& dy, const ops::Groups& groups, Saved& saved) {
  const MxTensor copies = quantized(ctx, dy, groups);
  report_underflow(ctx, kMxGradients, copies.rows, groups);
  const GradSink sink = ctx.grad(w);
  const Tensor dw = as_matrices(sink.grad);
  if (wgrad_in_mxfp8(ctx)) {
    const MxOperand x = saved.pop_mx("mx.x", ctx.mx_group());
    ops::mxfp8_grouped_wgrad(ctx, {.dy = copies.columns, .x = x, .groups = groups, .out = dw, .accumulate = sink.accumulate});
  } else {
    const Tensor x = saved.pop("mx.x");
    ops::grouped_gemm_wgrad(ctx, {.dy = dy, .x = x, .groups = groups, .out = dw, .accumulate = sink.accumulate});
  }
  ctx.grad_ready(w);
  Tensor dx = ctx.empty({dy.dim(0), w.shape[w.shape.rank() - 1]});
  ops::mxfp8_grouped_gemm(ctx, {.x = copies.rows, .w = ctx.mx_weights(w, MxCopy::kColumns), .groups = groups, .out = dx});
  return dx;
}

}  // namespace cistron::nn
