#include "cistron/ops/grouped_gemm.h"

#include "cistron/core/error.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {

namespace {

void check_rows(const char* op, const char* what, const Tensor& tensor, const Groups& groups, int64_t width, DType dtype) {
  check_tensor(op, what, tensor, {groups.max_rows(), width}, dtype);
}

void check_operand_dtype(const char* op, DType dtype) {
  CISTRON_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "[{}] operands of {}, wanted f32 or bf16", op, name_of(dtype));
}

void check_weights(const char* op, const Tensor& w, const Groups& groups) {
  check_operand_dtype(op, w.dtype());
  CISTRON_CHECK(w.shape().rank() == 3 && w.dim(0) == groups.num_experts(), "[{}] w is {}, wanted [{}, N, K]", op,
                to_string(w.shape()), groups.num_experts());
}

/// Rows in bf16 are copied in pieces of 16 bytes there.
void check_widths(const char* op, const Context& ctx, DType dtype, int64_t n, int64_t k) {
  CISTRON_CHECK(!ctx.target().is_cuda() || dtype != DType::kBF16 || (n % 8 == 0 && k % 8 == 0),
                "[{}] widths of {} and {}: on a card bf16 wants multiples of 8; pad the model's width, or train in fp32", op, n,
                k);
}

DType out_dtype(const Tensor& out, DType operands) { return out.dtype() == operands ? operands : DType::kF32; }

}  // namespace

void grouped_gemm_forward(Context& ctx, const GroupedGemmForward& args) {
  constexpr auto kOp = "grouped_gemm_forward";
  check_segments(kOp, args.groups);
  check_weights(kOp, args.w, args.groups);
  check_widths(kOp, ctx, args.w.dtype(), args.w.dim(1), args.w.dim(2));
  check_rows(kOp, "x", args.x, args.groups, args.w.dim(2), args.w.dtype());
  check_rows(kOp, "out", args.out, args.groups, args.w.dim(1), out_dtype(args.out, args.w.dtype()));
  check_bias(kOp, args.bias, args.groups, args.w.dim(1));
  dispatch(kOp, ctx, args, cpu::grouped_gemm_forward, cuda::grouped_gemm_forward);
}

void grouped_gemm_dgrad(Context& ctx, const GroupedGemmDgrad& args) {
  constexpr auto kOp = "grouped_gemm_dgrad";
  check_segments(kOp, args.groups);
  check_weights(kOp, args.w, args.groups);
  check_widths(kOp, ctx, args.w.dtype(), args.w.dim(1), args.w.dim(2));
  check_rows(kOp, "dy", args.dy, args.groups, args.w.dim(1), args.w.dtype());
  check_rows(kOp, "out", args.out, args.groups, args.w.dim(2), out_dtype(args.out, args.w.dtype()));
  dispatch(kOp, ctx, args, cpu::grouped_gemm_dgrad, cuda::grouped_gemm_dgrad);
}

void grouped_gemm_wgrad(Context& ctx, const GroupedGemmWgrad& args) {
  constexpr auto kOp = "grouped_gemm_wgrad";
  check_segments(kOp, args.groups);
  check_operand_dtype(kOp, args.x.dtype());
  CISTRON_CHECK(args.out.shape().rank() == 3, "[{}] out is {}, wanted [E, N, K]", kOp, to_string(args.out.shape()));
  check_tensor(kOp, "out", args.out, {args.groups.num_experts(), args.out.dim(1), args.out.dim(2)}, DType::kF32);
  check_widths(kOp, ctx, args.x.dtype(), args.out.dim(1), args.out.dim(2));
  check_rows(kOp, "dy", args.dy, args.groups, args.out.dim(1), args.x.dtype());
  check_rows(kOp, "x", args.x, args.groups, args.out.dim(2), args.x.dtype());
  dispatch(kOp, ctx, args, cpu::grouped_gemm_wgrad, cuda::grouped_gemm_wgrad);
}

}  // namespace cistron::ops
