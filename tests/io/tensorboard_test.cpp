#include "cistron/io/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cistron/io/checksum.h"
#include "tests/io/temp_directory.h"

namespace cistron::io {
namespace {

using namespace std::string_literals;
using testing::read_text;
using testing::TempDirectory;

template <class T>
T number_at(const std::string& text, size_t at) {
  T value;
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

uint32_t masked(const std::string& text) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(text)));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    const auto size = number_at<uint64_t>(file, at);
    EXPECT_EQ(number_at<uint32_t>(file, at + 8), masked(file.substr(at, 8)));
    records.push_back(file.substr(at + 12, size));
    EXPECT_EQ(number_at<uint32_t>(file, at + 12 + size), masked(records.back()));
    at += 16 + size;
  }
  return records;
}

std::string bytes_of(auto value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

TEST(TensorBoard, WritesEventsThatItsFormatDescribes) {
  const TempDirectory temp;
  EventWriter writer(temp.path());
  EXPECT_THAT(writer.path().filename().string(), ::testing::StartsWith("events.out.tfevents."));
  writer.scalar("loss", 300, 2.5, 1000.25);
  EXPECT_EQ(records_of(read_text(writer.path())).size(), 1u) << "buffered";
  writer.flush();
  const auto records = records_of(read_text(writer.path()));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].substr(9),
            "\x1a\x0d"
            "brain.Event:2");
  EXPECT_EQ(records[1],
            "\x09"s + bytes_of(1000.25) + "\x10\xac\x02" + "\x2a\x0d" + "\x0a\x0b" + "\x0a\x04loss" + "\x15" + bytes_of(2.5F));
}

// As TensorFlow's SummaryWriter does for its purge_step.
TEST(TensorBoard, AResumedRunTellsFromWhereEarlierFilesNoLongerCount) {
  const TempDirectory temp;
  const EventWriter writer(temp.path(), 300);
  const auto records = records_of(read_text(writer.path()));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].substr(9), "\x10\xac\x02\x3a\x02\x08\x01");
}

TEST(TensorBoard, FlushesAtItsEnd) {
  const TempDirectory temp;
  std::filesystem::path path;
  {
    EventWriter writer(temp.path());
    path = writer.path();
    for (int64_t step = 1; step <= 5000; ++step) writer.scalar("train/loss", step, 1.0 / static_cast<double>(step));
  }
  EXPECT_EQ(records_of(read_text(path)).size(), 5001u);
}

}  // namespace
}  // namespace cistron::io
