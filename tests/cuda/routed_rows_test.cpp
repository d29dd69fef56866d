// Groups, gather and combine on the card: the same bits as on the CPU, and nothing touched where nobody may write.
#include "cistron/ops/gather.h"
#include "tests/cuda/support.h"
#include "tests/ops/routing_support.h"

namespace cistron::test {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kBF16};

struct GroupsCase {
  int64_t tokens, top_k, experts;
  Choice choice = Choice::kRandom;
};

class CudaRoutedRows : public OnCard {
 protected:
  ops::Groups poisoned_groups(int64_t tokens, int64_t top_k, int64_t experts) {
    const ops::Groups groups = ops::empty_groups(cuda_, tokens, top_k, experts);
    for (const Tensor& t : {groups.starts, groups.counts, groups.source_row, groups.weight, groups.token_rows})
      poison_on_device(t);
    return groups;
  }
  /// [T, k], not distinct: the sort must not care.
  void expect_same_groups(const Tensor& experts, int64_t num_experts, int32_t first_expert) {
    const Tensor weights = random_tensor(cpu_, experts.shape(), DType::kF32, 2);
    const ops::Groups want = make_groups(cpu_, experts, num_experts, weights, 128, 0, first_expert);
    std::vector<Tensor> got = twice([&] {
      const ops::Groups groups = poisoned_groups(experts.dim(0), experts.dim(1), num_experts);
      ops::build_groups(cuda_,
                        {.experts = device(experts), .weights = device(weights), .groups = groups, .first_expert = first_expert});
      return std::vector{groups.starts, groups.counts, groups.token_rows, groups.source_row, groups.weight};
    });
    const int64_t used = want.source_row.dim(0);
    EXPECT_TRUE(same_bits(got[0], want.starts));
    EXPECT_TRUE(same_bits(got[1], want.counts));
    EXPECT_TRUE(same_bits(got[2], want.token_rows));
    EXPECT_TRUE(same_bits(got[3].rows(0, used), want.source_row));
    EXPECT_TRUE(same_bits(got[4].rows(0, used), want.weight));
    for (int64_t r = used; r < got[3].dim(0); ++r) {
      ASSERT_EQ(got[3].span<int32_t>()[static_cast<size_t>(r)], -1);
      ASSERT_EQ(got[4].span<float>()[static_cast<size_t>(r)], 0.0F);
    }
  }
};

TEST_F(CudaRoutedRows, GroupsAreTheReferences) {
  const GroupsCase cases[] = {{0, 2, 8},
                              {1, 1, 1},
                              {1, 2, 8},
                              {50, 4, 4},
                              {130, 2, 8, Choice::kLastExpertEmpty},
                              {37, 1, 5, Choice::kAllToLast},
                              {257, 3, 16},
                              {5000, 2, 8},
                              {3000, 8, 64},
                              {700, 6, 512},
                              {2048, 1, 512},
                              {9001, 1, 3, Choice::kAllToLast}};
  for (const auto& c : cases) {
    const Tensor experts = random_choices(cpu_, c.tokens, c.top_k, c.experts, c.choice, 1);
    expect_same_groups(experts, c.experts, 0);
  }
}

TEST_F(CudaRoutedRows, GroupsOfManyTokens) {  // more than a turn of a tile
  expect_same_groups(random_ints(cpu_, {200001, 2}, 3, 64), 64, 0);
  expect_same_groups(random_ints(cpu_, {300000, 1}, 4, 2), 2, 0);
}

TEST_F(CudaRoutedRows, GroupsOfSomeExperts) {
  expect_same_groups(random_choices(cpu_, 900, 4, 16, Choice::kRandom, 5), 5, 8);
  expect_same_groups(random_choices(cpu_, 900, 2, 16, Choice::kRandom, 6), 4, 100);  // nothing here
  const Tensor strange = tensor_of(cpu_, {3, 2}, DType::kI32, {0, -1, 2147483647, 3, -2147483648.0, 1});
  expect_same_groups(strange, 4, 0);
}

TEST_F(CudaRoutedRows, GroupsStayInTheRoomThereIs) {
  const Tensor experts = random_choices(cpu_, 400, 2, 4, Choice::kRandom, 7),
               weights = random_tensor(cpu_, {400, 2}, DType::kF32, 8);
  ops::Groups groups = poisoned_groups(400, 2, 4);
  const Tensor rows = groups.source_row, row_weights = groups.weight;
  groups.source_row = rows.rows(0, 256);
  groups.weight = row_weights.rows(0, 256);
  ops::build_groups(cuda_, {.experts = device(experts), .weights = device(weights), .groups = groups});
  const Tensor all_rows = host(rows), starts = host(groups.starts), counts = host(groups.counts),
               chosen = host(groups.token_rows);
  for (int64_t r = 256; r < all_rows.dim(0); ++r)
    ASSERT_EQ(all_rows.span<int32_t>()[static_cast<size_t>(r)], -1);  // poison is -1
  for (int32_t start : starts.span<int32_t>()) EXPECT_LE(start, 256);
  for (size_t e = 0; e < 4; ++e) EXPECT_LE(starts.span<int32_t>()[e] + counts.span<int32_t>()[e], 256);
  for (int32_t row : chosen.span<int32_t>()) EXPECT_LT(row, 256);
  for (double w : to_double(host(row_weights.rows(256, row_weights.dim(0) - 256)))) ASSERT_TRUE(std::isnan(w));
}

TEST_F(CudaRoutedRows, GatherCopiesRowsZeroesPadsAndTouchesNothingPastTheEnd) {
  for (const auto& c : routing_cases())
    for (DType dtype : kFloats)
      for (int64_t hidden : {17, 80, 256}) {
        const ops::Groups groups = groups_of(cpu_, c, 1);
        const Tensor x = random_tensor(cpu_, {c.tokens, hidden}, dtype, 3);
        const Tensor want = poisoned(cpu_, {groups.max_rows(), hidden}, dtype), got = poisoned_there(want.shape(), dtype);
        ops::gather(cpu_, {x, groups, want});
        ops::gather(cuda_, {device(x), device(groups), got});
        const auto used = static_cast<int64_t>(used_source_rows(groups).size());
        const Tensor back = host(got);
        EXPECT_TRUE(same_bits(back.rows(0, used), want.rows(0, used)));
        for (double v : to_double(back.rows(used, back.dim(0) - used))) EXPECT_TRUE(std::isnan(v));
        EXPECT_FALSE(same_bits(back.rows(0, 1), poisoned(cpu_, {1, hidden}, dtype)));
      }
}

TEST_F(CudaRoutedRows, CombineSumsATokensRows) {
  for (const auto& c : routing_cases())
    for (DType dtype : kFloats)
      for (bool accumulate : {false, true})
        for (int64_t hidden : {17, 80, 256}) {
          const ops::Groups groups = groups_of(cpu_, c, 1);
          const Tensor x = random_tensor(cpu_, {groups.max_rows(), hidden}, dtype, 4);
          poison_unused_rows(x, groups);
          groups.token_rows.span<int32_t>().back() = -1;  // on another rank
          const Tensor before =
              accumulate ? random_tensor(cpu_, {c.tokens, hidden}, dtype, 5) : poisoned(cpu_, {c.tokens, hidden}, dtype);
          const Tensor want = copy_of(cpu_, before);
          ops::combine(cpu_, {x, groups, want, accumulate});
          const Tensor got = twice([&] {
                               const Tensor out = device(before);
                               ops::combine(cuda_, {device(x), device(groups), out, accumulate});
                               return std::vector{out};
                             }).front();
          EXPECT_TRUE(same_bits(got, want));
          groups.token_rows.span<int32_t>().front() = -1;  // control: a choice forgotten
          const Tensor less = copy_of(cpu_, before);
          ops::combine(cpu_, {x, groups, less, accumulate});
          EXPECT_FALSE(c.tokens > 1 && same_bits(got, less));
        }
}

TEST_F(CudaRoutedRows, GatherChoices) {
  for (const auto& c : routing_cases()) {
    const ops::Groups groups = groups_of(cpu_, c, 1);
    const Tensor rows = random_tensor(cpu_, {groups.max_rows()}, DType::kF32, 4);
    poison_unused_rows(rows.reshape({groups.max_rows(), 1}), groups);
    groups.token_rows.span<int32_t>().back() = -1;
    const Tensor want = poisoned(cpu_, groups.token_rows.shape(), DType::kF32), got = poisoned_there(want.shape(), DType::kF32);
    ops::gather_choices(cpu_, {rows, groups, want});
    ops::gather_choices(cuda_, {device(rows), device(groups), got});
    EXPECT_TRUE(same_bits(host(got), want));
  }
}

}  // namespace
}  // namespace cistron::test
