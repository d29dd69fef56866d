#include "cistron/train/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <thread>

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

// The test's time limit is what would fail: without care the first write to a full pipe never returns.
TEST(Progress, APipeThatNobodyReadsHoldsNothingUp) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  std::FILE* stream = fdopen(ends[1], "w");
  const std::string line(1000, 'x');
  {
    Progress progress({.stream = stream});
    for (int i = 0; i < 1000; ++i) progress.say(line);  // a pipe holds 64 KiB
    std::string taken(1 << 20, ' ');
    const ssize_t size = read(ends[0], taken.data(), taken.size());
    EXPECT_GT(size, 4096);
    EXPECT_EQ(size % 1001, 0) << "whole lines";
    progress.say("goes on");
    ASSERT_EQ(read(ends[0], taken.data(), taken.size()), 8);
    EXPECT_TRUE(taken.starts_with("goes on\n"));
  }
  std::fclose(stream);
  close(ends[0]);
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
