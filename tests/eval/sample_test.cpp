#include "cistron/eval/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cistron/core/error.h"

namespace cistron::eval {
namespace {

const std::vector<float> kLogits{0.5F, 2.0F, -1.0F, 2.0F, 1.0F, -3.0F};

// How much of [0, 1) gives each token, to 1e-4.
std::vector<double> shares(const Sampling& sampling, const std::vector<float>& logits = kLogits) {
  constexpr int kDraws = 10000;
  std::vector<double> share(logits.size());
  for (int i = 0; i < kDraws; ++i)
    share[static_cast<size_t>(sample(logits, std::ssize(logits), sampling, (i + 0.5) / kDraws))] += 1.0 / kDraws;
  return share;
}

// softmax(logits / temperature) over the tokens of `kept`.
std::vector<double> softmax(double temperature, const std::vector<size_t>& kept) {
  std::vector<double> p(kLogits.size());
  for (const size_t token : kept) p[token] = std::exp(kLogits[token] / temperature);
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= sum;
  return p;
}

// Each token's share is an interval, so a grid of 10,000 is off by at most one point.
bool same(const std::vector<double>& got, const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i)
    if (std::abs(got[i] - want[i]) > 1.01e-4) return false;
  return true;
}

TEST(Sample, SharesAreTheProbabilities) {
  const std::vector<size_t> all{0, 1, 2, 3, 4, 5};
  EXPECT_TRUE(same(shares({}), softmax(1.0, all)));
  EXPECT_TRUE(same(shares({.temperature = 0.5}), softmax(0.5, all)));
  EXPECT_TRUE(same(shares({.temperature = 3.0}), softmax(3.0, all)));
  EXPECT_FALSE(same(shares({.temperature = 3.0}), softmax(2.99, all)));
}

TEST(Sample, TopKKeepsTheLikeliestAndWhatEqualsTheLast) {
  EXPECT_TRUE(same(shares({.top_k = 3}), softmax(1.0, {1, 3, 4})));
  EXPECT_TRUE(same(shares({.top_k = 1}), softmax(1.0, {1, 3})));
  EXPECT_TRUE(same(shares({.top_k = 6}), shares({})));
  EXPECT_TRUE(same(shares({.top_k = 100}), shares({})));
}

TEST(Sample, TopPKeepsTheFewestThatReachIt) {
  const auto p = softmax(1.0, {0, 1, 2, 3, 4, 5});
  EXPECT_TRUE(same(shares({.top_p = p[1] + p[3] - 1e-6}), softmax(1.0, {1, 3})));
  EXPECT_TRUE(same(shares({.top_p = p[1] + p[3] + 1e-6}), softmax(1.0, {1, 3, 4})));
  EXPECT_TRUE(same(shares({.top_p = 1e-9}), softmax(1.0, {1})));
  // After top-k: of 1, 3 and 4 alone, 1 and 3 have 0.84.
  EXPECT_TRUE(same(shares({.top_k = 3, .top_p = 0.84}), softmax(1.0, {1, 3})));
}

TEST(Sample, TemperatureZeroIsTheLikeliestAndTheLowerOfTwo) {
  EXPECT_EQ(sample(kLogits, 6, {.temperature = 0}, 0.99), 1);
  EXPECT_EQ(sample(kLogits, 1, {.temperature = 0}, 0.99), 0);  // others are not allowed
  EXPECT_EQ(sample(kLogits, 1, {}, 0.99), 0);
}

TEST(Sample, ExtremesStayInRange) {
  const std::vector<float> wide{-1e38F, 1e38F, 1e38F};
  EXPECT_EQ(sample(wide, 3, {.temperature = 1e-300}, 0.0), 1);
  EXPECT_EQ(sample(wide, 3, {}, std::nextafter(1.0, 0.0)), 2);
  EXPECT_EQ(sample(wide, 3, {.temperature = 1e300}, std::nextafter(1.0, 0.0)), 0);
}

TEST(Sample, NumbersThatAreNotFiniteAreAnError) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> logits = kLogits;
    logits[5] = bad;
    EXPECT_THROW(sample(logits, 5, {}, 0.5), Error);
  }
}

TEST(LogProbability, IsThatOfTheModel) {
  const auto p = softmax(1.0, {0, 1, 2, 3, 4, 5});
  for (size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(log_probability(kLogits, static_cast<int32_t>(i)), std::log(p[i]), 1e-14);
}

}  // namespace
}  // namespace cistron::eval
