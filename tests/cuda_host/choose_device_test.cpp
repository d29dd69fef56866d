#include "cistron/cuda/choose_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cistron/core/error.h"

namespace cistron::cuda {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

CardSurvey with_card(int capability) {
  return {.built = true,
          .driver_version = 13000,
          .runtime_version = 13000,
          .cards = {{.name = "Some Card", .capability = capability, .multiprocessors = 100}}};
}

void expect_refusal(const CardSurvey& survey, const char* words) {
  try {
    choose_device("cuda", survey);
    FAIL() << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr(words));
    EXPECT_THAT(error.what(), HasSubstr("--device cpu"));
  }
}

TEST(ChooseDevice, CudaIsRefusedInOneLineEach) {
  expect_refusal({}, "built without CUDA");
  expect_refusal({.built = true, .driver_version = 0, .problem = "no driver"}, "no CUDA driver");
  expect_refusal({.built = true, .driver_version = 13000, .problem = "no device"}, "no CUDA card can be used (no device)");
  expect_refusal(with_card(75), "too old");
}

TEST(ChooseDevice, AutoTakesACardThatWillDoAndSaysSo) {
  for (const int capability : {80, 89, 90, 120}) {
    const Choice choice = choose_device("auto", with_card(capability));
    EXPECT_TRUE(choice.device.is_cuda());
    EXPECT_THAT(choice.say, HasSubstr("Some Card"));
  }
  EXPECT_TRUE(choose_device("cuda", with_card(80)).device.is_cuda());
}

TEST(ChooseDevice, AutoFallsBackToTheCpuAndSaysWhy) {
  EXPECT_TRUE(choose_device("auto", with_card(75)).device.is_cpu());
  EXPECT_THAT(choose_device("auto", with_card(75)).say, HasSubstr("too old"));
  EXPECT_THAT(choose_device("auto", {}).say, IsEmpty()) << "a program without CUDA has no choice";
}

TEST(ChooseDevice, CpuLooksAtNoCard) { EXPECT_TRUE(choose_device("cpu", with_card(90)).device.is_cpu()); }

}  // namespace
}  // namespace cistron::cuda
