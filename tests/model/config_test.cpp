#include "cistron/model/config.h"

#include <gmock/gmock.h>

#include <numeric>

#include "cistron/core/error.h"
#include "cistron/model/decoder.h"

namespace cistron::model {
namespace {

int64_t count(const Decoder& decoder) {
  int64_t sum = 0;
  for (const Parameter* parameter : decoder.parameters()) sum += parameter->shape.numel();
  return sum;
}

struct Row {
  const char* name;
  double total, active;  // as published, in millions
  double tolerance;      // half of the last published digit
};

class Presets : public ::testing::TestWithParam<Row> {};

TEST_P(Presets, HaveThePublishedSizes) {
  const auto [name, total, active, tolerance] = GetParam();
  const ModelConfig config = preset(name);
  EXPECT_NEAR(static_cast<double>(config.parameters()) * 1e-6, total, tolerance);
  if (active > 0) {
    EXPECT_NEAR(static_cast<double>(config.active_parameters()) * 1e-6, active, tolerance);
  }
}

TEST_P(Presets, AreWhatTheModulesHold) {
  const ModelConfig config = preset(GetParam().name);
  EXPECT_EQ(count(Decoder(config)), config.parameters());
}

INSTANTIATE_TEST_SUITE_P(Table, Presets,
                         ::testing::Values(Row{"tiny-protein", 7.37, 2.65, 0.005}, Row{"mixtral-8x7b", 46700, 12900, 50},
                                           Row{"fine-grained-64", 1660, 0, 5}, Row{"progen3-3b", 2990, 870, 5}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Config, TiedHeadCountsOnce) {
  ModelConfig config = preset("tiny-protein");
  const int64_t untied = config.parameters();
  config.tied_head = true;
  EXPECT_EQ(untied - config.parameters(), config.vocabulary * config.hidden);
  EXPECT_EQ(count(Decoder(config)), config.parameters());
}

std::string refusal(const std::function<void(ModelConfig&)>& change) {
  ModelConfig config = preset("tiny-protein");
  change(config);
  try {
    config.validate();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "accepted";
}

TEST(Config, RefusesWhatCannotWork) {
  EXPECT_THAT(refusal([](auto& c) { c.top_k = 9; }), ::testing::HasSubstr("only 8 experts"));
  EXPECT_THAT(refusal([](auto& c) { c.kv_heads = 3; }), ::testing::HasSubstr("divide heads = 4"));
  EXPECT_THAT(refusal([](auto& c) { c.hidden = 0; }), ::testing::HasSubstr("hidden = 0"));
  EXPECT_THAT(refusal([](auto& c) { c.head_dim = 33; }), ::testing::HasSubstr("even number"));
  EXPECT_THAT(refusal([](auto& c) { c.rope_theta = std::nan(""); }), ::testing::HasSubstr("rope_theta"));
  EXPECT_THAT(refusal([](auto& c) { c.hidden = c.intermediate = 1000000000; }), ::testing::HasSubstr("2^50 parameters"));
  EXPECT_EQ(refusal([](auto&) {}), "accepted");
}

TEST(Config, UnknownPresetNamesTheNearest) {
  try {
    preset("tiny-protien");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("did you mean 'tiny-protein'"));
  }
}

}  // namespace
}  // namespace cistron::model
