#include "cistron/ops/rms_norm.h"

#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {

void rms_norm_forward(Context& ctx, const RmsNormForward& args) {
  constexpr const char* kOp = "rms_norm_forward";
  check_float(kOp, "x", args.x, 2);
  check_tensor(kOp, "w", args.w, {args.x.dim(1)}, DType::kF32);
  check_tensor(kOp, "out", args.out, args.x.shape(), args.x.dtype());
  check_tensor(kOp, "rstd", args.rstd, {args.x.dim(0)}, DType::kF32);
  dispatch(kOp, ctx, args, cpu::rms_norm_forward);
}

void rms_norm_backward(Context& ctx, const RmsNormBackward& args) {
  constexpr const char* kOp = "rms_norm_backward";
  check_float(kOp, "x", args.x, 2);
  check_tensor(kOp, "dy", args.dy, args.x.shape(), args.x.dtype());
  check_tensor(kOp, "w", args.w, {args.x.dim(1)}, DType::kF32);
  check_tensor(kOp, "rstd", args.rstd, {args.x.dim(0)}, DType::kF32);
  check_tensor(kOp, "dx", args.dx, args.x.shape(), args.x.dtype());
  check_tensor(kOp, "dw", args.dw.grad, args.w.shape(), DType::kF32);
  dispatch(kOp, ctx, args, cpu::rms_norm_backward);
}

}  // namespace cistron::ops
