#include "cistron/eval/score.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/eval/tiny_model.h"

namespace cistron::eval {
namespace {

std::unique_ptr<Inference> make_inference(int64_t batch_tokens, ThreadPool* pool = nullptr) {
  auto inference = std::make_unique<Inference>(InferenceOptions{.model = tiny_model(), .batch_tokens = batch_tokens}, pool);
  Context ctx;
  inference->parameters().initialise(ctx, 4);
  return inference;
}

std::vector<RecordScore> score(Inference& inference, const std::vector<std::vector<int32_t>>& records) {
  std::vector<RecordScore> scores;
  Scorer scorer(inference, 16, /*pad=*/2, [&](const RecordScore& score) { scores.push_back(score); });
  for (size_t i = 0; i < records.size(); ++i) scorer.add(std::to_string(i), records[i]);
  scorer.finish();
  return scores;
}

std::vector<std::vector<int32_t>> random_records() {
  std::vector<std::vector<int32_t>> records;
  for (const int64_t length : {5, 16, 2, 100, 1, 17, 0, 9, 40, 3}) records.push_back(random_record(length, records.size()));
  return records;
}

TEST(Score, EveryRecordComesOnceInOrderWithEveryTokenButTheFirst) {
  const auto inference = make_inference(32);
  const auto records = random_records();
  const auto scores = score(*inference, records);
  ASSERT_EQ(scores.size(), records.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_EQ(scores[i].id, std::to_string(i));
    EXPECT_EQ(scores[i].tokens(), std::max<int64_t>(std::ssize(records[i]) - 1, 0));
    for (const float x : scores[i].positions) EXPECT_LT(x, 0.0F);
  }
}

TEST(Score, AloneAndAmongOthersTheBitsAreTheSame) {
  const auto records = random_records();
  ThreadPool pool(2);
  const auto small = make_inference(32), large = make_inference(96, &pool);
  const auto together = score(*small, records), wide = score(*large, records);
  for (size_t i = 0; i < records.size(); ++i) {
    const auto alone = score(*small, {records[i]});
    EXPECT_EQ(alone[0].positions, together[i].positions) << i;
    EXPECT_EQ(alone[0].positions, wide[i].positions) << i;
  }
  auto other = records[0];
  other[0] = (other[0] + 1) % 33;
  EXPECT_NE(score(*small, {other})[0].positions, together[0].positions) << "the comparison sees nothing";
}

// The first window of a long record is what the record would be if it ended there; later ones see half a context before them.
TEST(Score, ALongRecordIsReadInWindows) {
  const auto inference = make_inference(32);
  const auto record = random_record(40, 9);
  const auto whole = score(*inference, {record})[0].positions;
  const auto head = score(*inference, {{record.begin(), record.begin() + 16}})[0].positions;
  EXPECT_TRUE(std::equal(head.begin(), head.end(), whole.begin()));
  const auto second = score(*inference, {{record.begin() + 8, record.begin() + 24}})[0].positions;
  EXPECT_TRUE(std::equal(second.begin() + 7, second.end(), whole.begin() + 15));  // tokens 16 to 23
}

TEST(Score, PositionsAddUp) {
  const auto inference = make_inference(32);
  const auto result = score(*inference, {random_record(12, 1)})[0];
  double sum = 0;
  for (const float x : result.positions) sum += x;
  EXPECT_EQ(result.log_likelihood(), sum);
  EXPECT_DOUBLE_EQ(result.perplexity(), std::exp(-sum / 11));
}

}  // namespace
}  // namespace cistron::eval
