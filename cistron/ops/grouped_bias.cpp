#include "cistron/ops/grouped_bias.h"

#include "cistron/core/checked.h"
#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"
#include "cistron/ops/scratch.h"

namespace cistron::ops {

void check_bias(const char* op, const ExpertBias& bias, const Groups& groups, int64_t width) {
  if (!bias.values.defined()) return;
  if (bias.scaled) check_groups(op, groups);
  check_tensor(op, "bias", bias.values, {groups.num_experts(), width}, DType::kF32);
}

void grouped_bias_backward(Context& ctx, const GroupedBiasBackward& args) {
  constexpr auto kOp = "grouped_bias_backward";
  check_groups(kOp, args.groups);
  check_float(kOp, "dy", args.dy, 2);
  const int64_t rows = args.groups.max_rows(), width = args.dy.dim(1);
  check_tensor(kOp, "dy", args.dy, {args.by_token ? args.groups.num_tokens() : rows, width}, args.dy.dtype());
  check_tensor(kOp, "dbias", args.dbias.grad, {args.groups.num_experts(), width}, DType::kF32);
  GroupedBiasBackward with_scratch = args;
  with_scratch.partials = cuda_scratch(ctx, {rows / kBiasTileRows + args.groups.num_experts(), width}, DType::kF32);
  if (args.bias.scaled) {
    check_tensor(kOp, "bias", args.bias.values, {args.groups.num_experts(), width}, DType::kF32);
    check_tensor(kOp, "dweight", args.dweight, {rows}, DType::kF32);
    with_scratch.row_partials = cuda_scratch(ctx, {ceil_div(width, kBiasTileColumns), rows}, DType::kF32);
  }
  dispatch(kOp, ctx, with_scratch, cpu::grouped_bias_backward, cuda::grouped_bias_backward);
}

}  // namespace cistron::ops
