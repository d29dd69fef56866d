#include "cistron/data/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cistron/core/error.h"

namespace cistron::data {
namespace {

using ::testing::ElementsAre;

TEST(Pack, LabelsAreTheNextTokenOfTheSameSequence) {
  const PackedBatch batch = pack(std::vector<std::vector<int32_t>>{{0, 5, 6, 2}, {7}, {}, {0, 2}});
  EXPECT_THAT(batch.tokens, ElementsAre(0, 5, 6, 2, 7, 0, 2));
  EXPECT_THAT(batch.labels, ElementsAre(5, 6, 2, -1, -1, 2, -1));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 0, 1));
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 4, 5, 7));
  EXPECT_THAT(batch.loss_weight, ElementsAre(1, 1, 1, 0, 0, 1, 0));
  EXPECT_EQ(batch.label_count, 4);
  EXPECT_EQ(batch.num_sequences(), 3);
}

TEST(Pack, NothingIsLegal) {
  const PackedBatch batch = pack({});
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0));
  EXPECT_EQ(batch.num_sequences(), 0);
}

TEST(Windows, CoverTheRecordOnceInNearlyEqualParts) {
  for (int64_t context = 3; context < 12; ++context) {
    for (int64_t length = 2; length < 200; ++length) {
      int64_t next = 0, shortest = length, longest = 0;
      for (int64_t i = 0; i < num_windows(length, context); ++i) {
        const Window window = training_window(length, context, i);
        ASSERT_EQ(window.begin, next);
        next = window.end;
        shortest = std::min(shortest, window.length());
        longest = std::max(longest, window.length());
      }
      ASSERT_EQ(next, length);
      ASSERT_LE(longest, context);
      ASSERT_LE(longest - shortest, 1);
      ASSERT_GE(shortest, 2) << "a window of one token has no label: " << length << " " << context;
    }
  }
}

TEST(Windows, ScoreEachTokenButTheFirstOnce) {
  for (int64_t context = 2; context < 9; ++context) {
    for (int64_t overlap = 1; overlap < context; ++overlap) {
      for (int64_t length = 1; length < 60; ++length) {
        std::vector<int> scored(static_cast<size_t>(length));
        for (const Window& window : scoring_windows(length, context, overlap)) {
          ASSERT_LE(window.length(), context);
          ASSERT_GE(window.first_scored, 1);
          ASSERT_EQ(window.first_scored, window.begin > 0 ? overlap : 1);
          for (int64_t i = window.begin + window.first_scored; i < window.end; ++i) ++scored[static_cast<size_t>(i)];
        }
        ASSERT_EQ(scored[0], 0);
        for (size_t i = 1; i < scored.size(); ++i) ASSERT_EQ(scored[i], 1) << i << " of " << length;
      }
    }
  }
}

TEST(Windows, ContextOnlyTokensAreNotLabels) {
  PackedBatch batch;
  std::ranges::copy(std::vector<int32_t>{4, 5, 6, 7}, batch.open_sequence(4).begin());
  batch.close_sequence(2);
  EXPECT_THAT(batch.labels, ElementsAre(-1, 6, 7, -1));
  EXPECT_THAT(batch.loss_weight, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(batch.label_count, 2);
}

TEST(Windows, RefuseAnOverlapThatNeverEnds) {
  EXPECT_THROW((void)scoring_windows(10, 4, 4), Error);
  EXPECT_THROW((void)scoring_windows(10, 4, 0), Error);
}

}  // namespace
}  // namespace cistron::data
