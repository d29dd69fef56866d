#include "cistron/data/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "cistron/core/rng.h"

namespace cistron::data {
namespace {

PackedBatch random_batch(int64_t tokens, int64_t longest, uint64_t seed) {
  const Rng rng(seed, 1);
  PackedBatch batch;
  for (uint64_t i = 0; batch.num_tokens() < tokens;) {
    const int64_t length =
        std::min(tokens - batch.num_tokens(), 1 + static_cast<int64_t>(rng.below(i++, static_cast<uint64_t>(longest))));
    for (int32_t& token : batch.open_sequence(length)) token = static_cast<int32_t>(rng.below(i++, 1000));
    batch.close_sequence();
  }
  return batch;
}

// The sequences, so that batches can be compared as bags of them.
std::vector<std::vector<int32_t>> sequences(const PackedBatch& batch) {
  std::vector<std::vector<int32_t>> all;
  for (int64_t s = 0; s < batch.num_sequences(); ++s) {
    const auto at = static_cast<size_t>(s);
    all.emplace_back(batch.tokens.begin() + batch.cu_seqlens[at], batch.tokens.begin() + batch.cu_seqlens[at + 1]);
  }
  return all;
}

TEST(Split, GivesEverySequenceToOneRankUnchanged) {
  for (const int ranks : {1, 2, 3, 7}) {
    const PackedBatch batch = random_batch(500, 60, static_cast<uint64_t>(ranks));
    std::vector<std::vector<int32_t>> found;
    int64_t labels = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const PackedBatch part = part_of_rank(batch, ranks, rank);
      EXPECT_LE(part.num_tokens(), most_tokens_of_rank(500, 60, ranks));
      EXPECT_EQ(part.cu_seqlens.back(), part.num_tokens());
      labels += part.label_count;
      PackedBatch again;
      for (const auto& sequence : sequences(part)) {
        std::ranges::copy(sequence, again.open_sequence(std::ssize(sequence)).begin());
        again.close_sequence();
        found.push_back(sequence);
      }
      EXPECT_EQ(part.labels, again.labels);
      EXPECT_EQ(part.positions, again.positions);
      EXPECT_EQ(part.loss_weight, again.loss_weight);
    }
    EXPECT_EQ(labels, batch.label_count);
    auto wanted = sequences(batch);
    std::ranges::sort(wanted);
    std::ranges::sort(found);
    EXPECT_EQ(found, wanted);
  }
}

TEST(Split, OneRankKeepsTheBatch) {
  const PackedBatch batch = random_batch(300, 40, 5), part = part_of_rank(batch, 1, 0);
  EXPECT_EQ(part.tokens, batch.tokens);
  EXPECT_EQ(part.cu_seqlens, batch.cu_seqlens);
}

TEST(Split, IsEven) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const PackedBatch batch = random_batch(4096, 512, seed);
    int64_t most = 0;
    for (int rank = 0; rank < 4; ++rank) most = std::max(most, part_of_rank(batch, 4, rank).num_tokens());
    EXPECT_LE(most, most_tokens_of_rank(4096, 512, 4));
    EXPECT_LE(most, 1024 + 1024 / 4) << seed;
  }
}

TEST(Split, MoreRanksThanSequencesLeavesSomeEmpty) {
  PackedBatch batch;
  std::ranges::fill(batch.open_sequence(5), 1);
  batch.close_sequence();
  EXPECT_EQ(part_of_rank(batch, 3, 0).num_tokens(), 5);
  EXPECT_EQ(part_of_rank(batch, 3, 2).num_tokens(), 0);
  EXPECT_EQ(part_of_rank(batch, 3, 2).cu_seqlens, std::vector<int32_t>{0});
  EXPECT_EQ(most_tokens_of_rank(5, 512, 3), 5);
}

}  // namespace
}  // namespace cistron::data
