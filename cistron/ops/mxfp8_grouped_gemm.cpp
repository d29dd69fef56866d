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

}  // namespace

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
  dispatch(kOp, ctx, args, cpu::mxfp8_grouped_gemm, cuda::mxfp8_grouped_gemm);
}

void mxfp8_grouped_wgrad(Context& ctx, const Mxfp8GroupedWgrad& args) {
  constexpr auto kOp = "mxfp8_grouped_wgrad";
  check_pair(kOp, args.dy, args.x);
  CISTRON_CHECK(!args.dy.is_weight() && !args.x.is_weight(), "[{}] wants transposed activations", kOp);
  const int64_t depth = round_up(args.groups.max_rows(), 128);  // of a transposed copy
  CISTRON_CHECK(args.x.depth() == depth, "[{}] contractions of {} rows, {} wanted", kOp, args.x.depth(), depth);
  check_tensor(kOp, "out", args.out, {args.groups.num_experts(), args.dy.rows(), args.x.rows()}, DType::kF32);
  dispatch(kOp, ctx, args, cpu::mxfp8_grouped_wgrad, cuda::mxfp8_grouped_wgrad);
}

}  // namespace cistron::ops
