#include "cistron/ops/gather.h"

#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {

void gather(Context& ctx, const Gather& args) {
  check_groups("gather", args.groups);
  CISTRON_CHECK(args.x.shape().rank() == 2, "[gather] x is {}, wanted [T, H]", to_string(args.x.shape()));
  const int64_t hidden = args.x.dim(1);
  check_tensor("gather", "x", args.x, {args.groups.num_tokens(), hidden}, args.x.dtype());
  check_tensor("gather", "out", args.out, {args.groups.max_rows(), hidden}, args.x.dtype());
  dispatch("gather", ctx, args, cpu::gather, cuda::gather);
}

void combine(Context& ctx, const Combine& args) {
  check_groups("combine", args.groups);
  check_float("combine", "x", args.x, 2);
  const int64_t hidden = args.x.dim(1);
  check_tensor("combine", "x", args.x, {args.groups.max_rows(), hidden}, args.x.dtype());
  check_tensor("combine", "out", args.out, {args.groups.num_tokens(), hidden}, args.x.dtype());
  dispatch("combine", ctx, args, cpu::combine, cuda::combine);
}

void gather_choices(Context& ctx, const GatherChoices& args) {
  check_groups("gather_choices", args.groups);
  check_tensor("gather_choices", "rows", args.rows, {args.groups.max_rows()}, DType::kF32);
  check_tensor("gather_choices", "out", args.out, args.groups.token_rows.shape(), DType::kF32);
  dispatch("gather_choices", ctx, args, cpu::gather_choices, cuda::gather_choices);
}

}  // namespace cistron::ops
