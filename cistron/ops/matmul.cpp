#include "cistron/ops/matmul.h"

#include "cistron/core/error.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {

namespace {

void check_matrix(const char* op, const char* what, const Tensor& tensor) {
  CISTRON_CHECK(tensor.shape().rank() == 2, "[{}] {} is {}, wanted a matrix", op, what, to_string(tensor.shape()));
}

void check_operands(const char* op, const Tensor& a, const Tensor& b) {
  check_matrix(op, "the first operand", a);
  check_matrix(op, "the second operand", b);
  CISTRON_CHECK(a.dtype() == b.dtype() && (a.dtype() == DType::kF32 || a.dtype() == DType::kBF16),
                "[{}] operands of {} and {}, wanted both f32 or both bf16", op, name_of(a.dtype()), name_of(b.dtype()));
}

void check_contracted(const char* op, int64_t left, int64_t right) {
  CISTRON_CHECK(left == right, "[{}] contracts {} with {}", op, left, right);
}

// `out` in f32, or without accumulation in the operands' dtype.
void check_out(const char* op, const Tensor& out, const Shape& shape, DType operands, bool accumulate) {
  check_tensor(op, "out", out, shape, out.dtype() == operands && !accumulate ? operands : DType::kF32);
}

template <class Args>
Args with_workspace(const Context& ctx, const Args& args) {
  Args result = args;
  result.workspace = dense_workspace(ctx);
  return result;
}

}  // namespace

Tensor dense_workspace(const Context& ctx) {
  return ctx.target().is_cuda() ? ctx.empty({kDenseWorkspaceBytes}, DType::kU8) : Tensor();
}

void matmul_forward(Context& ctx, const MatmulForward& args) {
  constexpr auto kOp = "matmul_forward";
  check_operands(kOp, args.x, args.w);
  check_contracted(kOp, args.x.dim(1), args.w.dim(1));
  check_out(kOp, args.out, {args.x.dim(0), args.w.dim(0)}, args.x.dtype(), args.accumulate);
  dispatch(kOp, ctx, with_workspace(ctx, args), cpu::matmul_forward, cuda::matmul_forward);
}

void matmul_dgrad(Context& ctx, const MatmulDgrad& args) {
  constexpr auto kOp = "matmul_dgrad";
  check_operands(kOp, args.dy, args.w);
  check_contracted(kOp, args.dy.dim(1), args.w.dim(0));
  check_out(kOp, args.out, {args.dy.dim(0), args.w.dim(1)}, args.dy.dtype(), args.accumulate);
  dispatch(kOp, ctx, with_workspace(ctx, args), cpu::matmul_dgrad, cuda::matmul_dgrad);
}

void matmul_wgrad(Context& ctx, const MatmulWgrad& args) {
  constexpr auto kOp = "matmul_wgrad";
  check_operands(kOp, args.dy, args.x);
  check_contracted(kOp, args.dy.dim(0), args.x.dim(0));
  check_tensor(kOp, "out", args.out, {args.dy.dim(1), args.x.dim(1)}, DType::kF32);
  dispatch(kOp, ctx, with_workspace(ctx, args), cpu::matmul_wgrad, cuda::matmul_wgrad);
}

}  // namespace cistron::ops
