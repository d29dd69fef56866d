#include "cistron/ops/grouped_swiglu.h"

#include "cistron/core/checked.h"
#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"
#include "cistron/ops/grouped_bias.h"

namespace cistron::ops {

void grouped_swiglu_forward(Context& ctx, const GroupedSwigluForward& args) {
  constexpr auto kOp = "grouped_swiglu_forward";
  check_groups(kOp, args.groups);
  check_float(kOp, "x", args.x, 2);
  check_float(kOp, "act", args.act, 2);
  const int64_t rows = args.groups.max_rows(), width = args.act.dim(1);
  const DType dtype = args.x.dtype();
  check_tensor(kOp, "x", args.x, {rows, args.x.dim(1)}, dtype);
  check_tensor(kOp, "w", args.w, {args.groups.num_experts(), 2 * width, args.x.dim(1)}, dtype);
  check_tensor(kOp, "gate_up", args.gate_up, {args.groups.packed_rows(), 2 * width}, dtype);
  check_tensor(kOp, "act", args.act, {rows, width}, dtype);
  check_bias(kOp, {.values = args.bias}, args.groups, 2 * width);
  dispatch(kOp, ctx, args, cpu::grouped_swiglu_forward, cuda::grouped_swiglu_forward);
}

void grouped_swiglu_backward(Context& ctx, const GroupedSwigluBackward& args) {
  constexpr auto kOp = "grouped_swiglu_backward";
  check_groups(kOp, args.groups);
  check_float(kOp, "dy", args.dy, 2);
  check_float(kOp, "act", args.act, 2);
  const int64_t rows = args.groups.max_rows(), width = args.act.dim(1);
  const DType dtype = args.dy.dtype();
  check_tensor(kOp, "dy", args.dy, {rows, args.dy.dim(1)}, dtype);
  check_tensor(kOp, "w", args.w, {args.groups.num_experts(), args.dy.dim(1), width}, dtype);
  check_tensor(kOp, "gate_up", args.gate_up, {args.groups.packed_rows(), 2 * width}, dtype);
  check_tensor(kOp, "dgate_up", args.dgate_up, {rows, 2 * width}, dtype);
  check_tensor(kOp, "act", args.act, {rows, width}, dtype);
  check_tensor(kOp, "dweight", args.dweight, {rows}, DType::kF32);
  GroupedSwigluBackward with_scratch = args;
  with_scratch.partials = ctx.empty({ceil_div(width, kSwigluTile), rows}, DType::kF32);
  dispatch(kOp, ctx, with_scratch, cpu::grouped_swiglu_backward, cuda::grouped_swiglu_backward);
}

std::string grouped_swiglu_refusal(const Context& ctx, int64_t hidden, int64_t intermediate) {
  return ctx.target().is_cuda() ? cuda::grouped_swiglu_refusal(ctx, hidden, intermediate) : "";
}

}  // namespace cistron::ops
