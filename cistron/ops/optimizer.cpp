#include "cistron/ops/optimizer.h"

#include "cistron/core/checked.h"
#include "cistron/ops/dispatch.h"
#include "cistron/ops/scratch.h"

namespace cistron::ops {

namespace {

Tensor partial_squares(const Context& ctx, std::span<const Tensor> grads) {
  int64_t pieces = 0;
  for (const Tensor& grad : grads) pieces += ceil_div(grad.numel(), kNormPiece);
  return cuda_scratch(ctx, {pieces}, DType::kF64);
}

void check_mx(const AdamWTensor& t) {
  const Shape& shape = t.mx.rows.elements.shape();
  CISTRON_CHECK(t.master.dtype() == DType::kF32 && t.mx.columns.defined(), "[adamw] MXFP8 wants an f32 master and both copies");
  CISTRON_CHECK(shape.rank() == 3 && shape.numel() == t.master.numel() && shape[2] == t.master.dim(t.master.shape().rank() - 1),
                "[adamw] MXFP8 {} of {}", to_string(shape), to_string(t.master.shape()));
  check_tensor("adamw", "mx.columns", t.mx.columns.elements, {shape[0], shape[2], shape[1]}, DType::kU8);
  check_operand("adamw", t.mx.rows);
  check_operand("adamw", t.mx.columns);
}

void check(const AdamWTensor& t) {
  const Shape& shape = t.master.shape();
  const DType weights = t.master.dtype(), moments = t.m.dtype();
  CISTRON_CHECK(weights == DType::kF32 || weights == DType::kBF16, "[adamw] master in {}", name_of(weights));
  CISTRON_CHECK(moments == DType::kF32 || moments == DType::kBF16 || moments == DType::kU8, "[adamw] m in {}", name_of(moments));
  check_tensor("adamw", "master", t.master, shape, weights);
  check_tensor("adamw", "grad", t.grad, shape, DType::kF32);
  check_tensor("adamw", "m", t.m, shape, moments);
  check_tensor("adamw", "v", t.v, shape, moments);
  CISTRON_CHECK(!t.working.defined() || weights == DType::kF32, "[adamw] a working copy of a weight without a master");
  if (t.working.defined()) check_tensor("adamw", "working", t.working, shape, DType::kBF16);
  if (t.mx.rows.defined()) check_mx(t);
  if (moments != DType::kU8) return;
  check_tensor("adamw", "m_scale", t.m_scale, scale_shape(shape), DType::kU8);
  check_tensor("adamw", "v_scale", t.v_scale, scale_shape(shape), DType::kU8);
}

}  // namespace

void grad_norm(Context& ctx, const GradNorm& args) {
  CISTRON_CHECK(args.state != nullptr, "[grad_norm] no state");
  for (const Tensor& grad : args.grads) check_tensor("grad_norm", "grad", grad, grad.shape(), DType::kF32);
  GradNorm with_scratch = args;
  with_scratch.partial = partial_squares(ctx, args.grads);
  dispatch("grad_norm", ctx, with_scratch, cpu::grad_norm, cuda::grad_norm);
}

void sum_of_squares(Context& ctx, const SumOfSquares& args) {
  check_tensor("sum_of_squares", "out", args.out, {1}, DType::kF64);
  for (const Tensor& grad : args.grads) check_tensor("sum_of_squares", "grad", grad, grad.shape(), DType::kF32);
  SumOfSquares with_scratch = args;
  with_scratch.partial = partial_squares(ctx, args.grads);
  dispatch("sum_of_squares", ctx, with_scratch, cpu::sum_of_squares, cuda::sum_of_squares);
}

void norm_of_squares(Context& ctx, const NormOfSquares& args) {
  CISTRON_CHECK(args.state != nullptr, "[norm_of_squares] no state");
  check_tensor("norm_of_squares", "squares", args.squares, {args.squares.numel()}, DType::kF64);
  dispatch("norm_of_squares", ctx, args, cpu::norm_of_squares, cuda::norm_of_squares);
}

Tensor quantized_master(const AdamWTensor& t) { return t.master.reshape(t.mx.rows.elements.shape()); }

StateRows state_rows(const AdamWTensor& t) {
  const int64_t elements = t.master.numel();
  const bool plain = t.master.dtype() == DType::kF32 && t.m.dtype() == DType::kF32 && !t.mx.rows.defined();
  const int64_t width = plain || t.master.shape().rank() < 2 ? elements : t.master.dim(t.master.shape().rank() - 1);
  return {.rows = elements == 0 ? 0 : elements / width, .width = width};
}

Shape scale_shape(const Shape& shape) {
  const int64_t width = shape.rank() > 1 ? shape[shape.rank() - 1] : shape.numel();
  return {width == 0 ? 0 : shape.numel() / width, ceil_div(width, kStateBlock)};
}

void adamw(Context& ctx, const AdamW& args) {
  CISTRON_CHECK(args.state != nullptr, "[adamw] no state");
  for (const AdamWTensor& t : args.tensors) check(t);
  dispatch("adamw", ctx, args, cpu::adamw, cuda::adamw);
}

}  // namespace cistron::ops
