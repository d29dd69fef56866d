#include "cistron/ops/groups.h"

#include "cistron/core/checked.h"
#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"
#include "cistron/ops/scratch.h"

namespace cistron::ops {

// On a card for its tiles; in MXFP8 so that no scale group straddles two experts.
int64_t row_alignment(const Context& ctx) { return ctx.target().is_cuda() || ctx.mx_group() > 0 ? 128 : 1; }

int64_t max_routed_rows(int64_t tokens, int64_t top_k, int64_t experts, int64_t alignment) {
  return checked_add(checked_mul(tokens, top_k), checked_mul(experts, alignment - 1)) / alignment * alignment;
}

Groups empty_groups(const Context& ctx, int64_t tokens, int64_t top_k, int64_t experts) {
  return empty_groups(ctx, tokens, top_k, experts, checked_mul(tokens, top_k));
}

Groups empty_groups(const Context& ctx, int64_t tokens, int64_t top_k, int64_t experts, int64_t choices) {
  const int64_t rows = max_routed_rows(choices, 1, experts, row_alignment(ctx));
  return {.starts = ctx.empty({experts + 1}, DType::kI32),
          .counts = ctx.empty({experts}, DType::kI32),
          .source_row = ctx.empty({rows}, DType::kI32),
          .weight = ctx.empty({rows}, DType::kF32),
          .token_rows = ctx.empty({tokens, top_k}, DType::kI32)};
}

void check_segments(const char* op, const Groups& groups) {
  const int64_t experts = groups.counts.numel();
  check_tensor(op, "groups.counts", groups.counts, {experts}, DType::kI32);
  check_tensor(op, "groups.starts", groups.starts, {experts + 1}, DType::kI32);
}

void check_groups(const char* op, const Groups& groups) {
  check_segments(op, groups);
  check_tensor(op, "groups.source_row", groups.source_row, {groups.source_row.numel()}, DType::kI32);
  check_tensor(op, "groups.weight", groups.weight, groups.source_row.shape(), DType::kF32);
  CISTRON_CHECK(groups.token_rows.shape().rank() == 2, "[{}] groups.token_rows is {}, wanted [T, k]", op,
                to_string(groups.token_rows.shape()));
  check_tensor(op, "groups.token_rows", groups.token_rows, groups.token_rows.shape(), DType::kI32);
}

void build_groups(Context& ctx, const BuildGroups& args) {
  const Groups& groups = args.groups;
  check_groups("build_groups", groups);
  check_tensor("build_groups", "experts", args.experts, groups.token_rows.shape(), DType::kI32);
  check_tensor("build_groups", "weights", args.weights, groups.token_rows.shape(), DType::kF32);
  CISTRON_CHECK(args.first_expert >= 0, "[build_groups] the first expert is {}", args.first_expert);
  CISTRON_CHECK(!ctx.target().is_cuda() || groups.num_experts() <= kMaxSortBins,
                "[build_groups] {} experts on one card, which takes {}: spread them over more ranks", groups.num_experts(),
                kMaxSortBins);
  BuildGroups with_scratch = args;
  if (args.alignment == 0) with_scratch.alignment = row_alignment(ctx);
  with_scratch.tile_counts = cuda_scratch(ctx, {kSortTiles, groups.num_experts()}, DType::kI32);
  dispatch("build_groups", ctx, with_scratch, cpu::build_groups, cuda::build_groups);
}

Groups one_group(Context& ctx, int64_t rows) {
  const auto shape_alone = [&](const Shape& shape) { return Tensor::view(nullptr, shape, DType::kI32, ctx.device); };
  const Groups groups{.starts = ctx.empty({2}, DType::kI32),
                      .counts = ctx.empty({1}, DType::kI32),
                      .source_row = shape_alone({rows}),
                      .weight = {},
                      .token_rows = shape_alone({rows, 1})};
  dispatch("one_group", ctx, OneGroup{groups}, cpu::one_group, cuda::one_group);
  return groups;
}

}  // namespace cistron::ops
