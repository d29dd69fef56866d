#include "cistron/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace cistron::train {
namespace {

TEST(LearningRate, WarmsUpLinearlyAndReachesThePeak) {
  for (const auto schedule : {Schedule::kConstant, Schedule::kCosine, Schedule::kWsd}) {
    const LearningRate rate{.schedule = schedule, .peak = 2.0, .steps = 100, .warmup = 10};
    EXPECT_DOUBLE_EQ(rate.at(1), 0.2);
    EXPECT_DOUBLE_EQ(rate.at(5), 1.0);
    EXPECT_DOUBLE_EQ(rate.at(10), 2.0);
  }
}

TEST(LearningRate, CosineIsHalfWayInTheMiddleAndEndsAtItsShare) {
  const LearningRate rate{.schedule = Schedule::kCosine, .peak = 1.0, .steps = 110, .warmup = 10, .final_share = 0.1};
  EXPECT_DOUBLE_EQ(rate.at(60), 0.55);
  EXPECT_DOUBLE_EQ(rate.at(35), 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2);
  EXPECT_DOUBLE_EQ(rate.at(110), 0.1);
  EXPECT_DOUBLE_EQ(rate.at(200), 0.1);
}

TEST(LearningRate, WsdStaysThenFalls) {
  const LearningRate rate{
      .schedule = Schedule::kWsd, .peak = 1.0, .steps = 100, .warmup = 10, .final_share = 0.0, .decay_share = 0.2};
  EXPECT_DOUBLE_EQ(rate.at(50), 1.0);
  EXPECT_DOUBLE_EQ(rate.at(80), 1.0);
  EXPECT_DOUBLE_EQ(rate.at(85), 0.5);  // a quarter of the descent: 1 - sqrt(1/4)
  EXPECT_DOUBLE_EQ(rate.at(100), 0.0);
}

TEST(LearningRate, NoWarmUpStartsAtThePeak) {
  EXPECT_DOUBLE_EQ((LearningRate{.schedule = Schedule::kConstant, .peak = 3.0, .steps = 5}).at(1), 3.0);
}

TEST(LearningRate, ARunShorterThanItsWarmUpNeverReachesThePeak) {
  EXPECT_DOUBLE_EQ((LearningRate{.peak = 1.0, .steps = 5, .warmup = 10}).at(5), 0.5);
}

}  // namespace
}  // namespace cistron::train
