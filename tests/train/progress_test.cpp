#include "cistron/train/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cistron::train {
namespace {

std::string shown(ProgressOptions options) {
  char* text = nullptr;
  size_t size = 0;
  options.stream = open_memstream(&text, &size);
  {
    Progress progress(options);
    progress.step({.step = 1, .steps = 2, .loss = 2.5, .tokens_per_second = 12345.4, .seconds_left = 65});
    progress.say("a line");
    progress.warn("a warning");
  }
  std::fclose(options.stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(Progress, PlainLinesWithoutATerminal) {
  EXPECT_EQ(shown({}), "step 1/2  loss 2.5000  12,345 tokens/s  1:05 left\na line\na warning\n");
}

TEST(Progress, QuietLeavesWarnings) { EXPECT_EQ(shown({.quiet = true}), "a warning\n"); }

TEST(Progress, LiveLineIsWipedBeforeALineThatStays) {
  EXPECT_THAT(shown({.live = true}), testing::StartsWith("\r\033[Kstep 1/2"));
  EXPECT_THAT(shown({.live = true}), testing::HasSubstr("left\r\033[Ka line\n"));
  EXPECT_THAT(shown({.live = true}), testing::Not(testing::HasSubstr("\033[36m")));
  EXPECT_THAT(shown({.live = true, .color = true}), testing::HasSubstr("\033[36mstep"));
}

TEST(Progress, PlainLinesAreFew) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  {
    Progress progress({.stream = stream});
    for (int64_t step = 1; step <= 100; ++step) progress.step({.step = step, .steps = 100});
  }
  std::fclose(stream);
  EXPECT_EQ(std::count(text, text + size, '\n'), 2);  // the first and the last
  std::free(text);
}

TEST(Progress, Numbers) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(with_commas(-123), "-123");
  EXPECT_EQ(clock_text(59.9), "0:59");
  EXPECT_EQ(clock_text(3723), "1:02:03");
  EXPECT_EQ(clock_text(-1), "0:00");
}

}  // namespace
}  // namespace cistron::train
