#include "cistron/dist/partition.h"

#include <gmock/gmock.h>

#include "cistron/core/error.h"
#include "cistron/core/rng.h"
#include "tests/ops/support.h"

namespace cistron::test {
namespace {

using dist::even_part;
using dist::experts_of;
using dist::kShardRows;
using dist::Range;
using dist::shard_rows;
using testing::HasSubstr;

TEST(Partition, EvenPartsCoverAllAndDifferByOne) {
  const Rng rng(17, 0);
  for (uint64_t i = 0; i < 500; ++i) {
    const auto count = static_cast<int64_t>(rng.below(2 * i, 300));
    const auto parts = 1 + static_cast<int>(rng.below(2 * i + 1, 20));
    int64_t next = 0;
    for (int part = 0; part < parts; ++part) {
      const Range range = even_part(count, parts, part);
      EXPECT_EQ(range.begin, next);
      EXPECT_GE(range.count, count / parts);
      EXPECT_LE(range.count, (count + parts - 1) / parts);
      next = range.end();
    }
    EXPECT_EQ(next, count);
  }
  EXPECT_ANY_THROW((void)even_part(4, 2, 2));
}

TEST(Partition, ExpertsNeedNotDivide) {
  EXPECT_EQ(experts_of(8, 3, 0), (Range{0, 3}));
  EXPECT_EQ(experts_of(8, 3, 2), (Range{6, 2}));
  EXPECT_THAT(error_of([] { (void)experts_of(4, 5, 0); }), HasSubstr("5 expert-parallel ranks for 4 experts: parallel.ep"));
}

Shape random_shape(const Rng& rng, uint64_t i) {
  Shape shape;
  const uint64_t dims = 1 + rng.below(8 * i, 3);
  if (dims == 3) shape.append(static_cast<int64_t>(rng.below(8 * i + 1, 9)));
  shape.append(static_cast<int64_t>(rng.below(8 * i + 2, 900)));
  if (dims > 1) shape.append(7);
  return shape;
}

TEST(Partition, ShardsCoverAllRowsAndAreCutBetweenBlocks) {
  const Rng rng(19, 0);
  for (uint64_t i = 0; i < 2000; ++i) {
    const Shape shape = random_shape(rng, i);
    const int64_t matrix = shape[std::max(shape.rank() - 2, 0)];
    const int64_t total = shape.rank() == 3 ? shape[0] * matrix : matrix;
    const auto parts = 1 + static_cast<int>(rng.below(8 * i + 3, 9));
    int64_t next = 0;
    for (int part = 0; part < parts; ++part) {
      const Range range = shard_rows(shape, parts, part);
      EXPECT_EQ(range.begin, next) << to_string(shape);
      EXPECT_GE(range.count, 0);
      EXPECT_LE(range.count, total / parts + kShardRows) << to_string(shape) << " over " << parts;
      EXPECT_TRUE(range.begin == total || range.begin % matrix % kShardRows == 0) << to_string(shape);
      next = range.end();
    }
    EXPECT_EQ(next, total);
  }
}

TEST(Partition, WholeExpertsWhereTheyDivide) {
  for (const int64_t rows : {1, 100, 129, 500}) {
    for (int part = 0; part < 4; ++part) {
      EXPECT_EQ(shard_rows({8, rows, 3}, 4, part), (Range{2 * part * rows, 2 * rows}));
    }
  }
  EXPECT_EQ(shard_rows({256, 3}, 2, 1), (Range{128, 128}));
}

}  // namespace
}  // namespace cistron::test
