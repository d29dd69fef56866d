#include "cistron/io/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/io/temp_directory.h"

namespace cistron::io {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

std::string refused(const std::string& text) {
  const std::string message = error_of(ErrorKind::kBadData, [&] { (void)parse_json(text, "FILE"); });
  EXPECT_THAT(message, HasSubstr("FILE"));
  return message;
}

TEST(Json, ParsesWhatIsSound) {
  EXPECT_EQ(parse_json(R"({"a": {"x": 1}, "b": {"x": [2, {"x": 3}]}})", "FILE").at("b").at("x").at(0), 2);
  EXPECT_EQ(parse_json(std::string(60, '[') + std::string(60, ']'), "FILE").size(), 1u);
}

TEST(Json, RefusesWhatIsNot) {
  EXPECT_THAT(refused(R"({"a": 1, "b": {"a": 2}, "a": 3})"), HasSubstr("\"a\" stands twice"));
  EXPECT_THAT(refused(R"([[{"a\n": 1, "a\n": 3}]])"), HasSubstr("\"a\\n\" stands twice"));
  EXPECT_THAT(refused(std::string(500'000, '[')), HasSubstr("nested deeper"));
  std::string objects;
  for (int i = 0; i < 500'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(refused(objects), HasSubstr("nested deeper"));
  for (const std::string bad :
       {"", "{", "{} {}", "\"\xff\"", "\"\xc0\xaf\"", "{\"a\": 01}", "nan", "[1e999]", "\"a\nb\"", "{\"a\" 1}"})
    refused(bad);
  refused(std::string("{}\0", 3));
  EXPECT_LT(refused("{\"" + std::string(1 << 20, 'k') + "\": 1, \"" + std::string(1 << 20, 'k') + "\": 1}").size(), 400u);
}

TEST(Json, WholeNumbersFitInto64Bits) {
  for (const int64_t number : {int64_t{0}, INT64_MIN, INT64_MAX})
    EXPECT_EQ(json_integer(parse_json(std::to_string(number), "FILE"), "FILE"), number);
  for (const char* bad : {"1.0", "1e300", "9223372036854775808", "\"1\"", "null", "[1]"})
    EXPECT_THAT(error_of(ErrorKind::kBadData, [&] { (void)json_integer(parse_json(bad, "FILE"), "FILE"); }), HasSubstr("FILE"));
}

}  // namespace
}  // namespace cistron::io
