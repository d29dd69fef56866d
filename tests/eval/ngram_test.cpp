#include "cistron/eval/ngram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cistron/core/error.h"
#include "cistron/core/rng.h"

namespace cistron::eval {
namespace {

using Sequences = std::vector<std::vector<int32_t>>;
constexpr int kVocabulary = 5;

Records over(const Sequences& sequences) {
  return [&sequences](const std::function<void(std::span<const int32_t>)>& use) {
    for (const auto& sequence : sequences) use(sequence);
  };
}

/// Records of 1 to 30 tokens; a token often repeats the one before it or, more often, the one two before.
Sequences random_sequences(uint64_t seed, int count) {
  const Rng rng(seed, 0);
  uint64_t draw = 0;
  Sequences sequences(static_cast<size_t>(count));
  for (auto& sequence : sequences) {
    const auto length = 1 + rng.below(draw++, 30);
    for (uint64_t i = 0; i < length; ++i) {
      const auto a = rng.below(draw++, kVocabulary), b = rng.below(draw++, kVocabulary);
      const auto fresh = static_cast<int32_t>(std::min(a, b));
      const double kind = rng.uniform(draw++);
      sequence.push_back(i < 2 || kind < 0.3 ? fresh : sequence[i - (kind < 0.5 ? 1 : 2)]);
    }
  }
  return sequences;
}

/// Places in `sequences` where `gram` stands, its last token being one that is predicted.
double occurrences(const Sequences& sequences, std::span<const int32_t> gram) {
  double count = 0.0;
  for (const auto& s : sequences) {
    for (size_t end = std::max<size_t>(gram.size(), 2); end <= s.size(); ++end) {
      count += std::equal(gram.begin(), gram.end(), s.begin() + static_cast<std::ptrdiff_t>(end - gram.size()));
    }
  }
  return count;
}

/// p(token | the last `strengths.size() - 1` of `history`), straight from the formula.
double probability(const Sequences& train, std::span<const int32_t> history, int32_t token, std::span<const double> strengths) {
  if (strengths.empty()) return 1.0 / kVocabulary;
  const double lower = probability(train, history, token, strengths.first(strengths.size() - 1));
  const size_t before = strengths.size() - 1;
  if (history.size() < before) return lower;
  std::vector<int32_t> gram(history.end() - static_cast<std::ptrdiff_t>(before), history.end());
  double total = 0.0;
  gram.push_back(0);
  for (gram.back() = 0; gram.back() < kVocabulary; ++gram.back()) total += occurrences(train, gram);
  gram.back() = token;
  return (occurrences(train, gram) + strengths.back() * lower) / (total + strengths.back());
}

double naive_loss(const Sequences& train, const Sequences& valid, std::span<const double> strengths) {
  double sum = 0.0, count = 0.0;
  for (const auto& s : valid) {
    for (size_t i = 1; i < s.size(); ++i, ++count) sum -= std::log(probability(train, std::span(s).first(i), s[i], strengths));
  }
  return sum / count;
}

class Ngram : public testing::Test {
 protected:
  const Sequences train_ = random_sequences(11, 40), valid_ = random_sequences(12, 12);
  const std::vector<NgramBaseline> found_ = ngram_baselines(over(train_), over(valid_), kVocabulary, 4);

  [[nodiscard]] std::vector<double> strengths(int order) const {
    std::vector<double> all;
    for (int n = 0; n < order; ++n) all.push_back(found_[n].strength);
    return all;
  }
};

TEST_F(Ngram, LossIsTheFormulas) {
  ASSERT_EQ(found_.size(), 4);
  for (int order = 1; order <= 4; ++order) {
    EXPECT_NEAR(found_[order - 1].loss, naive_loss(train_, valid_, strengths(order)), 1e-12) << order;
  }
  // The comparison can fail: one record less to count gives another loss.
  const Sequences fewer(train_.begin() + 1, train_.end());
  EXPECT_GT(std::abs(found_[2].loss - naive_loss(fewer, valid_, strengths(3))), 1e-6);
}

// ln a is found to 1e-3, so the loss to about half that squared times its curvature, which is below 1.
TEST_F(Ngram, StrengthIsTheBestOfItsOrder) {
  for (int order = 1; order <= 3; ++order) {
    for (const double factor : {0.25, 0.8, 1.25, 4.0}) {
      auto other = strengths(order);
      other.back() *= factor;
      EXPECT_GE(naive_loss(train_, valid_, other) + 1e-6, found_[order - 1].loss) << order << " x " << factor;
    }
  }
}

TEST_F(Ngram, FindsWhatTheSequencesHide) {
  EXPECT_LT(found_[1].loss, found_[0].loss - 0.01);
  EXPECT_LT(found_[2].loss, found_[1].loss - 0.1);  // the token two before matters more
}

TEST(NgramErrors, AreNamed) {
  const Sequences some = {{0, 1, 2}}, empty = {{0}, {}}, bad = {{0, 5}};
  EXPECT_THROW(ngram_baselines(over(some), over(empty), kVocabulary, 2), Error);
  EXPECT_THROW(ngram_baselines(over(some), over(bad), kVocabulary, 2), Error);
  EXPECT_THROW(ngram_baselines(over(some), over(some), kVocabulary, 0), Error);
  EXPECT_THROW(ngram_baselines(over(some), over(some), 1 << 20, 4), Error);
  EXPECT_NO_THROW(ngram_baselines(over(empty), over(some), kVocabulary, 2));  // nothing counted: all is smoothing
}

}  // namespace
}  // namespace cistron::eval
