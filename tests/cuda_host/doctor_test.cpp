// What the doctor says of machines that are not at hand.
#include "cistron/cuda/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cistron::cuda {
namespace {

using testing::HasSubstr;

Card card_of(int capability) {
  return {.name = "X", .capability = capability, .multiprocessors = 100, .memory_bytes = 80LL << 30, .free_bytes = 79LL << 30};
}

CardSurvey with(std::vector<Card> cards) {
  return {.built = true, .driver_version = 13000, .runtime_version = 13000, .problem = "", .cards = std::move(cards)};
}

TEST(Doctor, SaysHowToGetCudaWhereItWasNotBuilt) {
  const auto findings = examine({});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].verdict, Verdict::kNote);
  EXPECT_THAT(findings[0].advice, HasSubstr("make build-cuda"));
}

TEST(Doctor, MissesTheDriver) {
  const auto findings = examine({.built = true, .runtime_version = 13000, .problem = "no driver"});
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].verdict, Verdict::kMissing);
}

TEST(Doctor, MissesANewerDriver) {
  auto survey = with({card_of(90)});
  survey.driver_version = 12040;
  EXPECT_THAT(examine(survey)[0].advice, HasSubstr("built with CUDA 13.0"));
}

TEST(Doctor, NamesTheKernelsForEachCard) {
  const auto findings = examine(with({card_of(90), card_of(80), card_of(75)}));
  ASSERT_EQ(findings.size(), 4U);
  EXPECT_THAT(findings[1].found, HasSubstr("compute capability 9.0, 100 multiprocessors, 79 of 80 GiB free"));
  EXPECT_THAT(findings[1].advice, HasSubstr("Hopper"));
  EXPECT_THAT(findings[2].advice, HasSubstr("portable"));
  EXPECT_EQ(findings[3].verdict, Verdict::kMissing);
}

TEST(Doctor, SaysWhatRunsWithoutALibrary) {
  auto survey = with({card_of(90)});
  survey.libraries = {{"libA", "it does a", "we do a", ""}, {"libB", "it does b", "we do b", "no such file"}};
  const auto findings = examine(survey);
  ASSERT_EQ(findings.size(), 4U);
  EXPECT_EQ(findings[2].advice, "it does a");
  EXPECT_EQ(findings[3].verdict, Verdict::kNote);
  EXPECT_THAT(findings[3].advice, HasSubstr("we do b; to use it, name its folder in CISTRON_CUDA_LIBRARIES (no such file)"));
}

TEST(Doctor, LooksAtThisMachine) {
  const std::string text = to_text(doctor());
  EXPECT_THAT(text, HasSubstr("processor"));
  EXPECT_THAT(text, HasSubstr("GiB free"));
}

}  // namespace
}  // namespace cistron::cuda
