#include "cistron/ops/mxfp8_grouped_gemm.h"

#include "cistron/core/checked.h"
#include "cistron/core/error.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {
namespace {

void check_pair(const char* op, const MxOperand& a, const MxOperand& b) {
  check_operand(op, a);
  check_operand(op, b);
  CISTRON_CHECK(a.group == b.group, "[{}] operands with scale groups of {} and {}: one group wanted", op, a.group, b.group);
  CISTRON_CHECK(a.depth() == b.depth(), "[{}] contractions of {} and {} values", op, a.depth(), b.depth());
}

Shape turned(const Shape& shape) { return {shape[1], shape[0]}; }

/// `b`: a weight, or as `a` a transposed activation.
MxDecoded decoded(const Context& ctx, const MxOperand& a, const MxOperand& b) {
  const Shape &a_shape = a.elements.shape(), &b_shape = b.elements.shape();
  if (!ctx.target().is_cuda()) {
    const bool turn = !b.is_weight();
    return {.a = ctx.empty(turn ? turned(a_shape) : a_shape, DType::kF32),
            .b = ctx.empty(turn ? turned(b_shape) : b_shape, DType::kF32),
            .sum = {}};
  }
  if (!cuda::mxfp8_products_decode(ctx)) return {};
  return {.a = ctx.empty(a_shape, DType::kBF16), .b = ctx.empty(b_shape, DType::kBF16), .sum = {}};
}

}  // namespace

MxDecoded mx_decoded(const Context& ctx, const Mxfp8GroupedGemm& args) {
  MxDecoded scratch = decoded(ctx, args.x, args.w);
  if (!ctx.target().is_cuda() && args.out.dtype() != DType::kF32) scratch.sum = ctx.empty(args.out.shape(), DType::kF32);
  return scratch;
}

void mxfp8_grouped_gemm(Context& ctx, const Mxfp8GroupedGemm& args) {
  constexpr auto kOp = "mxfp8_grouped_gemm";
  check_pair(kOp, args.x, args.w);
  CISTRON_CHECK(!args.x.is_weight() && args.w.is_weight(), "[{}] wants an activation x and a weight w", kOp);
  CISTRON_CHECK(args.w.elements.dim(0) == args.groups.num_experts(), "[{}] {} weights for {} experts", kOp,
                args.w.elements.dim(0), args.groups.num_experts());
  CISTRON_CHECK(args.x.rows() == args.groups.max_rows(), "[{}] x has {} rows, the groups {}", kOp, args.x.rows(),
                args.groups.max_rows());
  check_tensor(kOp, "out", args.out, {args.x.rows(), args.w.rows()},
               args.out.dtype() == DType::kBF16 ? DType::kBF16 : DType::kF32);
  check_bias(kOp, args.bias, args.groups, args.w.rows());
  Mxfp8GroupedGemm with_scratch = args;
  with_scratch.decoded = mx_decoded(ctx, args);
  dispatch(kOp, ctx, with_scratch, cpu::mxfp8_grouped_gemm, cuda::mxfp8_grouped_gemm);
}

void mxfp8_grouped_wgrad(Context& ctx, const Mxfp8GroupedWgrad& args) {
  constexpr auto kOp = "mxfp8_grouped_wgrad";
  check_pair(kOp, args.dy, args.x);
  CISTRON_CHECK(!args.dy.is_weight() && !args.x.is_weight(), "[{}] wants transposed activations", kOp);
  const int64_t depth = round_up(args.groups.max_rows(), 128);  // of a transposed copy
  CISTRON_CHECK(args.x.depth() == depth, "[{}] contractions of {} rows, {} wanted", kOp, args.x.depth(), depth);
  check_tensor(kOp, "out", args.out, {args.groups.num_experts(), args.dy.rows(), args.x.rows()}, DType::kF32);
  Mxfp8GroupedWgrad with_scratch = args;
  with_scratch.decoded = decoded(ctx, args.dy, args.x);
  dispatch(kOp, ctx, with_scratch, cpu::mxfp8_grouped_wgrad, cuda::mxfp8_grouped_wgrad);
}

}  // namespace cistron::ops
