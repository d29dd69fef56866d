#include "cistron/ops/groups.h"

#include <gmock/gmock.h>

#include "tests/ops/routing_support.h"

namespace cistron {
namespace {

using test::error_of, test::ints, test::poison, test::same_bits;
using testing::HasSubstr;

ops::Groups poisoned_groups(const Context& ctx, int64_t tokens, int64_t top_k, int64_t experts) {
  const ops::Groups groups = ops::empty_groups(ctx, tokens, top_k, experts);
  for (const Tensor& t : {groups.starts, groups.counts, groups.source_row, groups.weight, groups.token_rows}) poison(t);
  return groups;
}

TEST(Groups, MatchTheReference) {
  test::CpuContext ctx;
  for (const auto& c : test::routing_cases()) {
    if (c.alignment != ops::row_alignment(ctx)) continue;
    const Tensor experts = test::random_choices(ctx, c.tokens, c.top_k, c.experts, c.choice, 1);
    const Tensor weights = test::random_tensor(ctx, experts.shape(), DType::kF32, 2);
    const ops::Groups want = test::make_groups(ctx, experts, c.experts, weights, c.alignment, 0);
    const ops::Groups got = poisoned_groups(ctx, c.tokens, c.top_k, c.experts);
    ops::build_groups(ctx, {experts, weights, got});
    EXPECT_TRUE(same_bits(got.starts, want.starts));
    EXPECT_TRUE(same_bits(got.counts, want.counts));
    EXPECT_TRUE(same_bits(got.source_row, want.source_row));
    EXPECT_TRUE(same_bits(got.weight, want.weight));
    EXPECT_TRUE(same_bits(got.token_rows, want.token_rows));
  }
}

// What the layout promises, said without the reference.
TEST(Groups, RowsAreSortedByExpertThenTokenAndInvertTokenRows) {
  test::CpuContext ctx;
  const Tensor experts = test::random_choices(ctx, 400, 3, 16, test::Choice::kRandom, 3);
  const Tensor weights = test::random_tensor(ctx, experts.shape(), DType::kF32, 4);
  const ops::Groups groups = poisoned_groups(ctx, 400, 3, 16);
  ops::build_groups(ctx, {experts, weights, groups});
  const auto source = ints(groups.source_row), rows = ints(groups.token_rows), chosen = ints(experts);
  std::vector<int32_t> expert_of_row(source.size(), -1);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<size_t>(rows[i]);
    EXPECT_EQ(source[row], static_cast<int32_t>(i / 3));
    EXPECT_EQ(groups.weight.span<float>()[row], weights.span<float>()[i]);
    EXPECT_EQ(expert_of_row[row], -1) << "row " << row << " used twice";
    expert_of_row[row] = chosen[i];
  }
  for (size_t r = 1; r < source.size(); ++r)
    EXPECT_LT(std::pair(expert_of_row[r - 1], source[r - 1]), std::pair(expert_of_row[r], source[r]));
}

TEST(Groups, RoomForTheWorstCase) {
  EXPECT_EQ(ops::max_routed_rows(10, 2, 4, 1), 20);
  EXPECT_EQ(ops::max_routed_rows(10, 2, 4, 128), 640);  // 20 + 4 x 127 = 528, rounded up
  EXPECT_EQ(ops::max_routed_rows(0, 2, 4, 1), 0);
}

TEST(Groups, RefusesWhatDoesNotFit) {
  test::CpuContext ctx;
  const Tensor weights = test::random_tensor(ctx, {3, 2}, DType::kF32, 4);
  const ops::Groups groups = poisoned_groups(ctx, 3, 2, 4);
  const Tensor bad = test::tensor_of(ctx, {3, 2}, DType::kI32, {0, 1, 2, 4, 0, 1});
  EXPECT_THAT(error_of([&] { ops::build_groups(ctx, {bad, weights, groups}); }), HasSubstr("expert 4 of 4"));
  Context meta = test::meta_context();
  const ops::Groups planned = ops::empty_groups(meta, 3, 2, 4);
  const Tensor experts = meta.empty({3, 2}, DType::kI32), w = meta.empty({3, 2}, DType::kF32);
  ops::build_groups(meta, {experts, w, planned});
  EXPECT_THAT(error_of([&] { ops::build_groups(meta, {w, w, planned}); }), HasSubstr("[build_groups] experts"));
  EXPECT_THAT(error_of([&] { ops::build_groups(meta, {experts, w.reshape({2, 3}), planned}); }),
              HasSubstr("[build_groups] weights"));
  ops::Groups small = planned;
  small.source_row = meta.empty({5}, DType::kI32);
  small.weight = meta.empty({5}, DType::kF32);
  EXPECT_THAT(error_of([&] { ops::build_groups(meta, {experts, w, small}); }), HasSubstr("room for 5 rows"));
}

}  // namespace
}  // namespace cistron
