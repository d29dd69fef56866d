#include "cistron/ops/mxfp8_grouped_swiglu.h"

#include "cistron/core/checked.h"
#include "cistron/core/error.h"
#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"
#include "cistron/ops/scratch.h"

namespace cistron::ops {
namespace {

constexpr int64_t kGroup = 128;

/// An operand with these elements, in scale groups of 128.
void check_elements(const char* op, const char* name, const MxOperand& operand, const Shape& shape) {
  check_tensor(op, name, operand.elements, shape, DType::kU8);
  check_operand(op, operand);
  CISTRON_CHECK(operand.group == kGroup, "[{}] {} has scale groups of {}: 128 wanted", op, name, operand.group);
}

/// The CPU works on whole bf16 tensors in memory.
Tensor cpu_scratch(const Context& ctx, const Shape& shape) {
  return ctx.target().is_cuda() ? Tensor{} : ctx.empty(shape, DType::kBF16);
}

MxDecoded product_scratch(const Context& ctx, const Mxfp8GroupedGemm& product) {
  return ctx.target().is_cuda() ? MxDecoded{} : mx_decoded(ctx, product);
}

}  // namespace

void mxfp8_grouped_swiglu_forward(Context& ctx, const Mxfp8GroupedSwigluForward& args) {
  constexpr auto kOp = "mxfp8_grouped_swiglu_forward";
  check_groups(kOp, args.groups);
  const int64_t rows = args.groups.max_rows(), hidden = args.x.depth(), width = args.act.depth();
  check_elements(kOp, "x", args.x, {rows, hidden});
  check_elements(kOp, "w", args.w, {args.groups.num_experts(), 2 * width, hidden});
  CISTRON_CHECK(args.w.sections == 2, "[{}] w has {} sections: gate and up wanted", kOp, args.w.sections);
  check_tensor(kOp, "gate_up", args.gate_up, {args.groups.packed_rows(), 2 * width}, DType::kBF16);
  check_elements(kOp, "act", args.act, {rows, width});
  check_bias(kOp, {.values = args.bias}, args.groups, 2 * width);
  Mxfp8GroupedSwigluForward with_scratch = args;
  with_scratch.gate_up_rows = cpu_scratch(ctx, {rows, 2 * width});
  with_scratch.values = cpu_scratch(ctx, {rows, width});
  with_scratch.product =
      product_scratch(ctx, {.x = args.x, .w = args.w, .groups = args.groups, .out = with_scratch.gate_up_rows});
  dispatch(kOp, ctx, with_scratch, cpu::mxfp8_grouped_swiglu_forward, cuda::mxfp8_grouped_swiglu_forward);
}

void mxfp8_grouped_swiglu_backward(Context& ctx, const Mxfp8GroupedSwigluBackward& args) {
  constexpr auto kOp = "mxfp8_grouped_swiglu_backward";
  check_groups(kOp, args.groups);
  const int64_t rows = args.groups.max_rows(), depth = round_up(rows, kGroup);
  const int64_t hidden = args.dy.depth(), width = args.act.rows();
  CISTRON_CHECK(width % kGroup == 0, "[{}] {} columns are no multiple of {}", kOp, width, kGroup);  // gate ends with a group
  check_elements(kOp, "dy", args.dy, {rows, hidden});
  check_elements(kOp, "w", args.w, {args.groups.num_experts(), width, hidden});
  check_tensor(kOp, "gate_up", args.gate_up, {args.groups.packed_rows(), 2 * width}, DType::kBF16);
  check_elements(kOp, "dgate_up along its rows", args.dgate_up.rows, {rows, 2 * width});
  check_elements(kOp, "dgate_up transposed", args.dgate_up.columns, {2 * width, depth});
  check_elements(kOp, "act", args.act, {width, depth});
  check_tensor(kOp, "dweight", args.dweight, {rows}, DType::kF32);
  check_bias(kOp, {.values = args.dbias.grad}, args.groups, 2 * width);
  Mxfp8GroupedSwigluBackward with_scratch = args;
  with_scratch.d = ctx.empty({rows, width}, DType::kBF16);
  with_scratch.gate_up_rows = cpu_scratch(ctx, {rows, 2 * width});
  with_scratch.values = cpu_scratch(ctx, {rows, 2 * width});
  with_scratch.product = product_scratch(ctx, {.x = args.dy, .w = args.w, .groups = args.groups, .out = with_scratch.d});
  with_scratch.partials = cuda_scratch(ctx, {ceil_div(width, kGroup), rows}, DType::kF32);
  if (args.dbias.grad.defined())
    with_scratch.dbias_partials = cuda_scratch(ctx, {rows / kBiasTileRows + args.groups.num_experts(), 2 * width}, DType::kF32);
  dispatch(kOp, ctx, with_scratch, cpu::mxfp8_grouped_swiglu_backward, cuda::mxfp8_grouped_swiglu_backward);
}

std::string mxfp8_grouped_swiglu_refusal(const Context& ctx, int64_t group, int64_t hidden, int64_t intermediate) {
  if (group != kGroup) return fmt::format("scale groups of {}, whose weight gradients are bf16 products", group);
  if (hidden % kGroup != 0 || intermediate % kGroup != 0)
    return fmt::format("widths {} and {} are not multiples of 128", hidden, intermediate);
  return ctx.target().is_cuda() ? cuda::mxfp8_grouped_swiglu_refusal(ctx) : "";
}

}  // namespace cistron::ops
