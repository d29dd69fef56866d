#include "cistron/ops/rms_norm.h"

#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"
#include "cistron/ops/scratch.h"

namespace cistron::ops {

namespace {

/// On CUDA: how many partial sums of dw there are. As many as fill a large card, 8 MiB, and eight rows in each at least;
/// a multiple of a block's groups of threads.
int64_t partial_sums(int64_t rows, int64_t hidden) {
  constexpr int64_t kElements = int64_t{1} << 21, kRows = 8, kGroups = 8;
  const int64_t wanted = std::min(kElements / std::max<int64_t>(1, hidden), ceil_div(rows, kRows));
  return round_up(std::max<int64_t>(1, wanted), kGroups);
}

}  // namespace

void rms_norm_forward(Context& ctx, const RmsNormForward& args) {
  constexpr const char* kOp = "rms_norm_forward";
  check_float(kOp, "x", args.x, 2);
  check_tensor(kOp, "w", args.w, {args.x.dim(1)}, DType::kF32);
  if (args.out.defined()) check_tensor(kOp, "out", args.out, args.x.shape(), args.x.dtype());
  check_tensor(kOp, "rstd", args.rstd, {args.x.dim(0)}, DType::kF32);
  dispatch(kOp, ctx, args, cpu::rms_norm_forward, cuda::rms_norm_forward);
}

void add_rms_norm_forward(Context& ctx, const AddRmsNormForward& args) {
  constexpr const char* kOp = "add_rms_norm_forward";
  check_float(kOp, "a", args.a, 2);
  check_tensor(kOp, "b", args.b, args.a.shape(), args.a.dtype());
  check_tensor(kOp, "w", args.w, {args.a.dim(1)}, DType::kF32);
  check_tensor(kOp, "sum", args.sum, args.a.shape(), args.a.dtype());
  if (args.out.defined()) check_tensor(kOp, "out", args.out, args.a.shape(), args.a.dtype());
  check_tensor(kOp, "rstd", args.rstd, {args.a.dim(0)}, DType::kF32);
  dispatch(kOp, ctx, args, cpu::add_rms_norm_forward, cuda::add_rms_norm_forward);
}

void rms_norm_backward(Context& ctx, const RmsNormBackward& args) {
  constexpr const char* kOp = "rms_norm_backward";
  check_float(kOp, "x", args.x, 2);
  check_tensor(kOp, "dy", args.dy, args.x.shape(), args.x.dtype());
  check_tensor(kOp, "w", args.w, {args.x.dim(1)}, DType::kF32);
  check_tensor(kOp, "rstd", args.rstd, {args.x.dim(0)}, DType::kF32);
  check_tensor(kOp, "dx", args.dx, args.x.shape(), args.x.dtype());
  check_tensor(kOp, "dw", args.dw.grad, args.w.shape(), DType::kF32);
  RmsNormBackward with_scratch = args;
  with_scratch.partial = cuda_scratch(ctx, {partial_sums(args.x.dim(0), args.x.dim(1)), args.x.dim(1)}, DType::kF32);
  dispatch(kOp, ctx, with_scratch, cpu::rms_norm_backward, cuda::rms_norm_backward);
}

}  // namespace cistron::ops
