#include "cistron/ops/elementwise.h"

#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {

void cast(Context& ctx, const Cast& args) {
  check_float("cast", "x", args.x, args.x.shape().rank());
  check_float("cast", "out", args.out, args.x.shape().rank());
  check_tensor("cast", "out", args.out, args.x.shape(), args.out.dtype());
  dispatch("cast", ctx, args, cpu::cast, cuda::cast);
}

void add(Context& ctx, const Add& args) {
  if (args.a.dtype() != DType::kF64) check_float("add", "a", args.a, args.a.shape().rank());
  check_tensor("add", "b", args.b, args.a.shape(), args.a.dtype());
  check_tensor("add", "out", args.out, args.a.shape(), args.a.dtype());
  dispatch("add", ctx, args, cpu::add, cuda::add);
}

void zero(Context& ctx, const Zero& args) { dispatch("zero", ctx, args, cpu::zero, cuda::zero); }

void clamp(Context& ctx, const Clamp& args) {
  check_float("clamp", "x", args.x, args.x.shape().rank());
  CISTRON_CHECK(args.limit > 0, "[clamp] limit {} is not positive", args.limit);
  dispatch("clamp", ctx, args, cpu::clamp, cuda::clamp);
}

void clamp_backward(Context& ctx, const ClampBackward& args) {
  check_float("clamp_backward", "clamped", args.clamped, args.clamped.shape().rank());
  check_float("clamp_backward", "dx", args.dx, args.clamped.shape().rank());
  check_tensor("clamp_backward", "dx", args.dx, args.clamped.shape(), args.dx.dtype());
  CISTRON_CHECK(args.limit > 0, "[clamp_backward] limit {} is not positive", args.limit);
  dispatch("clamp_backward", ctx, args, cpu::clamp_backward, cuda::clamp_backward);
}

}  // namespace cistron::ops
