#include "cistron/ops/groups.h"

#include <algorithm>
#include <vector>

#include "cistron/core/checked.h"

namespace cistron::cpu {

namespace {

/// The group of a choice; num_experts() or more: none here.
size_t group_of(const ops::BuildGroups& args, int32_t expert) {
  return static_cast<size_t>(static_cast<uint32_t>(expert) - static_cast<uint32_t>(args.first_expert));
}

void count_choices(const ops::BuildGroups& args) {
  const auto counts = args.groups.counts.span<int32_t>();
  std::fill(counts.begin(), counts.end(), 0);
  for (const int32_t expert : args.experts.span<int32_t>())
    if (const size_t e = group_of(args, expert); e < counts.size()) ++counts[e];
}

void place_segments(const ops::Groups& groups, int64_t alignment) {
  const auto counts = groups.counts.span<int32_t>();
  const auto starts = groups.starts.span<int32_t>();
  starts[0] = 0;
  for (size_t e = 0; e < counts.size(); ++e) starts[e + 1] = narrow<int32_t>(starts[e] + round_up(counts[e], alignment));
  CISTRON_CHECK(starts.back() <= groups.max_rows(), "[build_groups] room for {} rows, {} are needed", groups.max_rows(),
                starts.back());
}

}  // namespace

void one_group(Context& ctx, const ops::OneGroup& args) {
  const int64_t rows = args.groups.max_rows();
  args.groups.counts.data<int32_t>()[0] = narrow<int32_t>(rows);
  args.groups.starts.data<int32_t>()[0] = 0;
  args.groups.starts.data<int32_t>()[1] = narrow<int32_t>(round_up(rows, ops::row_alignment(ctx)));
}

// Serial: a few integer operations a choice, far below the products that follow.
void build_groups(Context& /*ctx*/, const ops::BuildGroups& args) {
  const ops::Groups& groups = args.groups;
  count_choices(args);
  place_segments(groups, args.alignment);
  const auto source_row = groups.source_row.span<int32_t>();
  const auto weight = groups.weight.span<float>();
  std::fill(source_row.begin(), source_row.end(), -1);
  std::fill(weight.begin(), weight.end(), 0.0F);
  const auto starts = groups.starts.span<int32_t>();
  std::vector<int32_t> next(starts.begin(), starts.end());
  const auto experts = args.experts.span<int32_t>();
  const auto weights = args.weights.span<float>();
  const auto token_rows = groups.token_rows.span<int32_t>();
  for (size_t i = 0; i < experts.size(); ++i) {
    token_rows[i] = -1;
    const size_t e = group_of(args, experts[i]);
    if (e >= static_cast<size_t>(groups.num_experts())) continue;
    const auto row = static_cast<size_t>(next[e]++);
    source_row[row] = static_cast<int32_t>(static_cast<int64_t>(i) / groups.top_k());
    weight[row] = weights[i];
    token_rows[i] = static_cast<int32_t>(row);
  }
}

}  // namespace cistron::cpu
