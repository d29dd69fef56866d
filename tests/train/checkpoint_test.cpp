#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "cistron/core/error.h"
#include "cistron/dist/single.h"
#include "cistron/dist/threads.h"
#include "cistron/io/atomic_file.h"
#include "cistron/nn/sequential.h"
#include "cistron/train/checkpoint_folder.h"
#include "tests/train/support.h"

namespace cistron::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() : decoder_(test::tiny_model()), parameters_(make(decoder_)) { parameters_.initialise(ctx_, 5); }

  static nn::LocalParameters make(const model::Decoder& decoder) {
    const auto arena = [](const char* name) { return Arena::growing(name, Device{}, host_memory()); };
    return {decoder.parameters(), Precision::kF32, {.parameters = arena("p"), .gradients = arena("g"), .optimizer = arena("o")}};
  }

  CheckpointInfo info(int64_t step) const {
    CheckpointInfo result{.tokenizer = "esm2"};
    result.config.model = test::tiny_model();
    result.config.optimizer.lr = 0.25;
    result.state = {.step = step, .tokens = 96 * step, .store_fingerprint = 0xfedcba9876543210, .validation_due = true};
    result.state.step_state.step = step;
    return result;
  }

  /// Other numbers at every step, in masters and moments.
  void save(int64_t step, int64_t keep = 3) {
    float value = static_cast<float>(step);
    for (auto& entry : parameters_.entries())
      for (const Tensor* tensor : {&entry.master, &entry.m, &entry.v})
        for (float& x : tensor->span<float>()) x = (value += 0.5F);
    folder().save(ctx_, info(step), slices_of(parameters_), keep, *dist::single());
  }

  CheckpointFolder folder() const { return CheckpointFolder(directory_.path()); }
  fs::path at(int64_t step) const { return directory_.path() / CheckpointFolder::name_of(step); }
  std::unique_ptr<Checkpoint> find() {
    said_.clear();
    return folder().find([this](const std::string& line) { said_.push_back(line); });
  }
  std::string latest() const {
    std::string name;
    std::ifstream(directory_.path() / "latest") >> name;
    return name;
  }

  test::TemporaryDirectory directory_;
  Context ctx_;
  model::Decoder decoder_;
  nn::LocalParameters parameters_;
  std::vector<std::string> said_;
};

void flip_byte(const fs::path& file, int64_t offset_from_end) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-offset_from_end, std::ios::end);
  const char byte = static_cast<char>(stream.get() ^ 0x10);
  stream.seekp(-offset_from_end, std::ios::end);
  stream.put(byte);
}

TEST_F(CheckpointTest, ComesBackToTheBit) {
  save(7);
  const Checkpoint checkpoint(at(7));
  EXPECT_EQ(checkpoint.info().tokenizer, "esm2");
  EXPECT_EQ(checkpoint.info().config.model, test::tiny_model());
  EXPECT_EQ(checkpoint.info().config.optimizer.lr, 0.25);
  EXPECT_EQ(checkpoint.info().state.step, 7);
  EXPECT_EQ(checkpoint.info().state.tokens, 7 * 96);
  EXPECT_EQ(checkpoint.info().state.store_fingerprint, 0xfedcba9876543210);
  EXPECT_TRUE(checkpoint.info().state.validation_due);
  nn::LocalParameters other = make(decoder_);
  checkpoint.load(ctx_, other);
  for (size_t i = 0; i < other.entries().size(); ++i) {
    const auto &a = other.entries()[i], &b = parameters_.entries()[i];
    for (const auto& [x, y] : {std::pair(a.master, b.master), std::pair(a.m, b.m), std::pair(a.v, b.v)})
      EXPECT_EQ(std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.bytes())), 0) << a.parameter->name;
  }
  std::vector<float> part(40);
  checkpoint.read("head", 100, part);
  EXPECT_TRUE(std::ranges::equal(part, parameters_.find("head").master.span<float>().subspan(100, 40)));
  EXPECT_THROW(checkpoint.read("head", 33 * 32 - 39, part), Error);
  EXPECT_EQ(latest(), "step-00000007");
}

/// The experts [begin, begin + count) of 4, with biases.
nn::Sequential experts_with_biases(int64_t begin, int64_t count) {
  return nn::Sequential{nn::GroupedLinear{
      {.experts = 4, .in = 6, .out = 5, .name = "experts", .begin = begin, .count = count, .bias = nn::Bias::kScaled}}};
}

TEST_F(CheckpointTest, HoldsBiasesOfExpertsForAnyLayout) {
  const auto arenas = [] {
    const auto arena = Arena::growing("parameters", Device{}, host_memory());
    return nn::ParameterArenas{.parameters = arena, .optimizer = arena};
  };
  // Masters are the number of their element, of 4 x 5 biases and of weights alike; moments half of it, and a third.
  const auto fill = [](const nn::LocalParameters::Entry& entry) {
    for (const auto& [tensor, factor] : {std::pair(entry.master, 1.0F), std::pair(entry.m, 0.5F), std::pair(entry.v, 0.3F)})
      for (size_t i = 0; float& x : tensor.span<float>())
        x = factor * static_cast<float>(entry.first_row() * nn::row_width(entry.parameter->shape) + static_cast<int64_t>(i++));
  };
  dist::run_ranks(2, [&](dist::Communicator& world) {
    Context ctx;
    const nn::Sequential half = experts_with_biases(2 * world.rank(), 2);
    const nn::LocalParameters parameters(half.parameters(), Precision::kBF16, arenas());
    for (const auto& entry : parameters.entries()) fill(entry);
    folder().save(ctx, info(7), slices_of(parameters), 1, world);
  });
  const nn::Sequential whole = experts_with_biases(0, -1);
  nn::LocalParameters loaded(whole.parameters(), Precision::kBF16, arenas()),
      want(whole.parameters(), Precision::kBF16, arenas());
  Checkpoint(at(7)).load(ctx_, loaded);
  for (const char* name : {"experts", "experts.bias"}) {
    const auto &a = loaded.find(name), &b = want.find(name);
    fill(b);
    for (const auto& [x, y] : {std::pair(a.master, b.master), std::pair(a.m, b.m), std::pair(a.v, b.v)})
      EXPECT_TRUE(std::ranges::equal(x.span<float>(), y.span<float>())) << name;
  }
}

TEST_F(CheckpointTest, KeepsTheLastOnes) {
  for (int64_t step = 1; step <= 5; ++step) save(step, 2);
  EXPECT_FALSE(fs::exists(at(3)));
  EXPECT_TRUE(fs::exists(at(4)));
  EXPECT_TRUE(fs::exists(at(5)));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), {}), 3);  // and `latest`
}

TEST_F(CheckpointTest, NeverRemovesTheOnlyGoodOneForLaterOnesOfAnotherRun) {
  save(9, 1);
  save(3, 1);  // the run went back
  EXPECT_TRUE(fs::exists(at(3)));
  EXPECT_EQ(latest(), "step-00000003");
  EXPECT_EQ(find()->info().state.step, 3);
}

TEST_F(CheckpointTest, SavingAStepAgainReplacesIt) {
  save(3);
  flip_byte(at(3) / "parameters.safetensors", 5);
  EXPECT_THROW(Checkpoint{at(3)}, Error);
  save(3);
  EXPECT_NO_THROW(Checkpoint{at(3)});
}

TEST_F(CheckpointTest, NoneIsNull) {
  EXPECT_EQ(find(), nullptr);
  EXPECT_THAT(said_, testing::IsEmpty());
}

struct Damage {
  const char* name;
  void (*apply)(const fs::path& checkpoint);
  const char* says;
};

class CheckpointDamage : public CheckpointTest, public testing::WithParamInterface<Damage> {};

TEST_P(CheckpointDamage, IsNamedAndTheOneBeforeIsFound) {
  save(4);
  save(8);
  GetParam().apply(at(8));
  try {
    const Checkpoint broken(at(8));
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadData);
    EXPECT_THAT(error.what(), HasSubstr(at(8).string()));
    EXPECT_THAT(error.what(), HasSubstr(GetParam().says));
  }
  const auto found = find();
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->info().state.step, 4);
  EXPECT_THAT(said_, testing::Contains(HasSubstr(GetParam().says)));
}

void rewrite_manifest(const fs::path& checkpoint, const std::string& from, const std::string& to) {
  std::stringstream text;
  text << std::ifstream(checkpoint / "manifest.json").rdbuf();
  std::string manifest = text.str();
  manifest.replace(manifest.find(from), from.size(), to);
  std::ofstream(checkpoint / "manifest.json") << manifest;
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoint, CheckpointDamage,
    testing::Values(
        Damage{"FlippedParameter", [](const fs::path& c) { flip_byte(c / "parameters.safetensors", 1000); }, "wrong checksum"},
        Damage{"FlippedMoment", [](const fs::path& c) { flip_byte(c / "optimizer.safetensors", 1); }, "wrong checksum"},
        Damage{"FlippedState", [](const fs::path& c) { flip_byte(c / "state.json", 20); }, "wrong checksum"},
        Damage{"CutShort", [](const fs::path& c) { fs::resize_file(c / "optimizer.safetensors", 100); }, "bytes instead of"},
        Damage{"Emptied", [](const fs::path& c) { fs::resize_file(c / "config.toml", 0); }, "bytes instead of"},
        Damage{"Missing", [](const fs::path& c) { fs::remove(c / "state.json"); }, "missing"},
        Damage{"Extra", [](const fs::path& c) { std::ofstream(c / "notes.txt") << "hello"; }, "does not belong"},
        Damage{"NoManifest", [](const fs::path& c) { fs::remove(c / "manifest.json"); }, "no manifest"},
        Damage{"HalfAManifest", [](const fs::path& c) { fs::resize_file(c / "manifest.json", 60); }, "broken JSON"},
        Damage{"EmptyManifest", [](const fs::path& c) { fs::resize_file(c / "manifest.json", 0); }, "broken JSON"},
        Damage{"OtherVersion", [](const fs::path& c) { rewrite_manifest(c, "\"version\": 2", "\"version\": 3"); }, "version 3"},
        Damage{"ChangedManifest", [](const fs::path& c) { rewrite_manifest(c, "\"begin\": 0", "\"begin\": 1"); },
               "wrong checksum"},
        Damage{"AListForAManifest", [](const fs::path& c) { std::ofstream(c / "manifest.json") << "[1, 2]"; }, "broken manifest"},
        Damage{"AnotherFile", [](const fs::path& c) { std::ofstream(c / "manifest.json") << "{\"format\": \"other\"}"; },
               "not the manifest"},
        Damage{"Gone",
               [](const fs::path& c) {
                 fs::remove_all(c);
                 fs::create_directory(c);
               },
               "no manifest"}),
    [](const auto& info) { return info.param.name; });

TEST_F(CheckpointTest, LatestPointingToNothingIsSaid) {
  save(4);
  save(8);
  std::ofstream(directory_.path() / "latest") << "step-00000099\n";
  EXPECT_EQ(find()->info().state.step, 8);
  EXPECT_THAT(said_, testing::ElementsAre(HasSubstr("step-00000099")));
}

TEST_F(CheckpointTest, LatestIsFollowedWhereItIsWhole) {
  save(4);
  save(8);
  std::ofstream(directory_.path() / "latest") << "step-00000004\n";
  EXPECT_EQ(find()->info().state.step, 4);
  EXPECT_THAT(said_, testing::IsEmpty());
}

TEST_F(CheckpointTest, TwoHalfWrittenOnesBesideAWholeOne) {
  save(4);
  fs::copy(at(4), directory_.path() / "step-00000008.partial", fs::copy_options::recursive);
  fs::copy(at(4), at(12), fs::copy_options::recursive);
  fs::remove(at(12) / "optimizer.safetensors");
  fs::remove(directory_.path() / "latest");
  EXPECT_EQ(find()->info().state.step, 4);
  EXPECT_THAT(said_, testing::ElementsAre(HasSubstr("step-00000012")));
}

TEST_F(CheckpointTest, AllBrokenIsAnErrorAndNotAFreshStart) {
  save(4);
  fs::remove(at(4) / "state.json");
  EXPECT_THROW(find(), Error);
}

TEST_F(CheckpointTest, AnotherModelIsRefusedByName) {
  save(4);
  auto config = test::tiny_model();
  config.intermediate = 40;
  const model::Decoder other(config);
  nn::LocalParameters parameters = make(other);
  EXPECT_THAT([&] { Checkpoint(at(4)).load(ctx_, parameters); },
              testing::ThrowsMessage<Error>(testing::AllOf(HasSubstr("layers.0.moe.gate_up"), HasSubstr("[4, 80, 32]"))));
}

TEST_F(CheckpointTest, AModelOfFewerLayersIsRefused) {
  save(4);
  auto config = test::tiny_model();
  config.layers = 1;
  const model::Decoder other(config);
  nn::LocalParameters parameters = make(other);
  EXPECT_THAT([&] { Checkpoint(at(4)).load(ctx_, parameters); }, testing::ThrowsMessage<Error>(HasSubstr("tensors for")));
}

}  // namespace
}  // namespace cistron::train
