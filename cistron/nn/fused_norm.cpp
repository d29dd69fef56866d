#include "cistron/nn/fused_norm.h"

#include "cistron/core/error.h"
#include "cistron/nn/residual.h"
#include "cistron/nn/rms_norm.h"
#include "cistron/ops/device_memory.h"
#include "cistron/ops/mxfp8.h"
#include "cistron/ops/rms_norm.h"

namespace cistron::nn {

namespace {

const RmsNorm& norm_of(MatchedOperations operations) { return dynamic_cast<const RmsNorm&>(*operations[1]); }

std::string quantize_refusal(const Context& ctx, MatchedOperations operations) {
  if (std::string why = Quantize::refusal(ctx); !why.empty()) return why;
  const int64_t width = norm_of(operations).weight().shape[0];
  return width % Quantize::kGroup == 0 ? "" : fmt::format("width {} is not a multiple of {}", width, Quantize::kGroup);
}

/// The stream with the branch, where there is one, and its rstd; its norm too, where `normed` is defined.
void add_and_norm(Context& ctx, const RmsNorm& norm, Flow& flow, const Tensor& normed, const Tensor& rstd) {
  const Tensor w = ctx.weights(norm.weight());
  if (!flow.x.defined())
    return ops::rms_norm_forward(ctx, {.x = flow.stream, .w = w, .eps = norm.eps(), .out = normed, .rstd = rstd});
  const Tensor sum = ctx.empty(flow.stream.shape());
  ops::add_rms_norm_forward(ctx,
                            {.a = flow.stream, .b = flow.x, .w = w, .eps = norm.eps(), .sum = sum, .out = normed, .rstd = rstd});
  flow.stream = sum;
  flow.x = {};
}

/// Tells an observer of the norm that is quantised, in memory of its own, which no plan knows of.
void report_norm(Context& ctx, const RmsNorm& norm, const Tensor& x, const Tensor& rstd) {
  if (!ctx.observe) return;
  const auto arena = Arena::growing("observed", ctx.device, ops::device_memory(ctx.device));
  const Tensor y = Tensor::empty(arena, x.shape(), x.dtype());
  ops::rms_norm_forward(ctx, {.x = x, .w = ctx.weights(norm.weight()), .eps = norm.eps(), .out = y, .rstd = rstd});
  ctx.report(norm.weight().name, y);
}

}  // namespace

Fusion fused_norm_quantize() {
  return {.name = "residual + RMSNorm + quantize",
          .pattern = {OperationKind::kResidual, OperationKind::kRmsNorm, OperationKind::kQuantize},
          .refusal = quantize_refusal,
          .make = [](MatchedOperations operations) -> std::unique_ptr<Operation> {
            return std::make_unique<FusedNorm>(norm_of(operations), /*quantizes=*/true);
          }};
}

Fusion fused_norm() {
  return {.name = "residual + RMSNorm",
          .pattern = {OperationKind::kResidual, OperationKind::kRmsNorm},
          .refusal = [](const Context&, MatchedOperations) { return ""; },
          .make = [](MatchedOperations operations) -> std::unique_ptr<Operation> {
            return std::make_unique<FusedNorm>(norm_of(operations), /*quantizes=*/false);
          }};
}

std::string FusedNorm::describe() const {
  return fmt::format("FusedNorm {}{}", norm_->weight().shape[0], quantizes_ ? " to MXFP8" : "");
}

void FusedNorm::run(Context& ctx, Flow& flow, Saved& saved) const {
  const Tensor rstd = ctx.empty({flow.stream.dim(0)}, DType::kF32);
  const Tensor normed = quantizes_ ? Tensor() : ctx.empty(flow.stream.shape());
  add_and_norm(ctx, *norm_, flow, normed, rstd);
  save_norm(flow.stream, rstd, saved);
  if (!quantizes_) {
    flow.x = normed;
    return ctx.report(norm_->weight().name, normed);
  }
  flow.mx = ops::mxfp8_empty(ctx, flow.stream.dim(0), flow.stream.dim(1), Quantize::kGroup);
  ops::mxfp8_quantize(ctx, {.x = flow.stream, .out = flow.mx, .rstd = rstd, .norm_weight = ctx.weights(norm_->weight())});
  report_norm(ctx, *norm_, flow.stream, rstd);
}

void FusedNorm::run_back(Context& ctx, Flow& gradient, Saved& saved) const {
  const bool accumulate = gradient.stream.defined();
  if (!accumulate) gradient.stream = ctx.empty(gradient.x.shape());
  norm_backward(ctx, norm_->weight(), gradient.x, saved, gradient.stream, accumulate);
  gradient.x = gradient.stream;
}

}  // namespace cistron::nn
