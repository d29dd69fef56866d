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

// An expert-parallel rank: groups of some experts only, and tokens that are nobody's.
TEST(Groups, OfARangeOfExperts) {
  test::CpuContext ctx;
  for (const auto& [first, count] : {std::pair(0, 3), std::pair(3, 5), std::pair(7, 1), std::pair(2, 9)}) {
    const Tensor experts = test::random_choices(ctx, 130, 2, 8, test::Choice::kLastExpertEmpty, 5);
    for (const size_t gone : {size_t{0}, size_t{1}, size_t{77}, size_t{259}}) experts.span<int32_t>()[gone] = -1;
    const Tensor weights = test::random_tensor(ctx, experts.shape(), DType::kF32, 6);
    const ops::Groups want = test::make_groups(ctx, experts, count, weights, 1, 0, first);
    const int64_t rows = want.max_rows();
    ops::Groups got = poisoned_groups(ctx, 130, 2, count);
    got.source_row = got.source_row.rows(0, rows);  // room for no more than there are
    got.weight = got.weight.rows(0, rows);
    ops::build_groups(ctx, {experts, weights, got, first});
    EXPECT_TRUE(same_bits(got.starts, want.starts));
    EXPECT_TRUE(same_bits(got.counts, want.counts));
    EXPECT_TRUE(same_bits(got.source_row, want.source_row));
    EXPECT_TRUE(same_bits(got.weight, want.weight));
    EXPECT_TRUE(same_bits(got.token_rows, want.token_rows));
    if (rows == 0) continue;
    const ops::Groups other = poisoned_groups(ctx, 130, 2, count);
    ops::build_groups(ctx, {experts, weights, other, first + 1});
    EXPECT_FALSE(same_bits(other.token_rows, want.token_rows));
    got.source_row = got.source_row.rows(0, rows - 1);
    got.weight = got.weight.rows(0, rows - 1);
    EXPECT_THAT(error_of([&] { ops::build_groups(ctx, {experts, weights, got, first}); }),
                HasSubstr(fmt::format("room for {} rows, {} are needed", rows - 1, rows)));
  }
}

TEST(Groups, RoomForTheWorstCase) {
  EXPECT_EQ(ops::max_routed_rows(10, 2, 4, 1), 20);
  EXPECT_EQ(ops::max_routed_rows(10, 2, 4, 128), 512);  // 20 + 4 x 127 = 528: four segments of 128
  EXPECT_EQ(ops::max_routed_rows(0, 2, 4, 1), 0);
}

TEST(Groups, RefusesWhatDoesNotFit) {
  Context meta = test::meta_context();
  const ops::Groups planned = ops::empty_groups(meta, 3, 2, 4);
  const Tensor experts = meta.empty({3, 2}, DType::kI32), w = meta.empty({3, 2}, DType::kF32);
  ops::build_groups(meta, {experts, w, planned});
  EXPECT_THAT(error_of([&] { ops::build_groups(meta, {w, w, planned}); }), HasSubstr("[build_groups] experts"));
  EXPECT_THAT(error_of([&] { ops::build_groups(meta, {experts, w.reshape({2, 3}), planned}); }),
              HasSubstr("[build_groups] weights"));
  EXPECT_THAT(error_of([&] { ops::build_groups(meta, {experts, w, planned, -1}); }), HasSubstr("first expert is -1"));
  meta.planned = Device{DeviceKind::kCuda};
  const auto on_a_card = [&](int64_t count) {
    const ops::Groups groups = ops::empty_groups(meta, 3, 2, count);
    return error_of([&] { ops::build_groups(meta, {experts, w, groups}); });
  };
  EXPECT_EQ(on_a_card(512), "");
  EXPECT_THAT(on_a_card(513), HasSubstr("[build_groups] 513 experts on one card"));
}

}  // namespace
}  // namespace cistron
