#include "cistron/ops/swiglu.h"

#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {

void scaled_swiglu_forward(Context& ctx, const ScaledSwigluForward& args) {
  constexpr const char* kOp = "scaled_swiglu_forward";
  check_groups(kOp, args.groups);
  check_float(kOp, "out", args.out, 2);
  const int64_t rows = args.groups.max_rows();
  const int64_t width = args.out.dim(1);
  check_tensor(kOp, "out", args.out, {rows, width}, args.out.dtype());
  check_tensor(kOp, "gate_up", args.gate_up, {rows, 2 * width}, args.out.dtype());
  dispatch(kOp, ctx, args, cpu::scaled_swiglu_forward, cuda::scaled_swiglu_forward);
}

void scaled_swiglu_backward(Context& ctx, const ScaledSwigluBackward& args) {
  constexpr const char* kOp = "scaled_swiglu_backward";
  check_groups(kOp, args.groups);
  check_float(kOp, "dy", args.dy, 2);
  const int64_t rows = args.groups.max_rows();
  const int64_t width = args.dy.dim(1);
  check_tensor(kOp, "dy", args.dy, {rows, width}, args.dy.dtype());
  check_tensor(kOp, "gate_up", args.gate_up, {rows, 2 * width}, args.dy.dtype());
  check_tensor(kOp, "dgate_up", args.dgate_up, {rows, 2 * width}, args.dy.dtype());
  check_tensor(kOp, "dweight", args.dweight, {rows}, DType::kF32);
  dispatch(kOp, ctx, args, cpu::scaled_swiglu_backward, cuda::scaled_swiglu_backward);
}

}  // namespace cistron::ops
