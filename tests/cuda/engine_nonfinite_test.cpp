// A number that is not finite, in a step on a card: nothing is updated from there on, its module is found, and a run that resumes
// goes on.
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>

#include "cistron/dist/single.h"
#include "cistron/train/checkpoint.h"
#include "cistron/train/checkpoint_slices.h"
#include "tests/cuda/step_support.h"

namespace cistron::train {
namespace {

using test::kCard;
using test::masters_of;
using test::run_steps;
using test::same_bits;

struct Planted {
  Precision precision;
  const char* parameter;
  const char* module;  // how its name begins
};

void PrintTo(const Planted& p, std::ostream* os) { *os << p.parameter << ", recipe " << static_cast<int>(p.precision); }

class CudaNonfinite : public testing::TestWithParam<Planted> {
 protected:
  void SetUp() override { CISTRON_NEEDS_CARD(); }

  static void plant_nan(Engine& engine, const std::string& parameter) {
    ops::write_pieces(engine.context(), engine.parameters().find(parameter).master, [](int64_t, std::span<std::byte> piece) {
      auto* values = reinterpret_cast<float*>(piece.data());
      std::fill_n(values, piece.size() / sizeof(float), std::numeric_limits<float>::quiet_NaN());
    });
    engine.refresh_working();
  }
  static void save(Engine& engine, const EngineOptions& options, const std::filesystem::path& path) {
    CheckpointInfo info{.tokenizer = "esm2"};
    info.config.model = options.model;
    info.state.step = engine.state().step;
    save_checkpoint(engine.context(), path, info, slices_of(engine.parameters()), false, *dist::single());
  }
  static void load(Engine& engine, const std::filesystem::path& path) {
    const Checkpoint checkpoint(path);
    checkpoint.load(engine.context(), engine.parameters());
    engine.refresh_working();
    engine.state().step = checkpoint.info().state.step;
  }
};

TEST_P(CudaNonfinite, StopsWhatIsUnderWayIsFoundAndIsGoneWhenTheRunResumes) {
  const auto [precision, parameter, module] = GetParam();
  const EngineOptions options = test::wide_step_options(kCard, precision);
  const test::TemporaryDirectory directory;
  Engine engine(options, Engine::plan(options), nullptr);
  engine.initialise(3);
  run_steps(engine, options, 1, 3);  // recorded by now
  save(engine, options, directory.path() / "before");

  plant_nan(engine, parameter);
  const auto before = masters_of(engine);
  const auto packed = test::random_batch(options.micro_batch_tokens, 9),
             next = test::random_batch(options.micro_batch_tokens, 10);
  const nn::Batch batch = nn::view_of(packed), next_batch = nn::view_of(next);
  engine.queue_step(std::span(&batch, 1), 180.0, 1e-3);
  engine.queue_step(std::span(&next_batch, 1), 180.0, 1e-3);
  EXPECT_FALSE(engine.next_result().finite);
  EXPECT_FALSE(engine.next_result().finite);
  EXPECT_TRUE(same_bits(before, masters_of(engine)));
  EXPECT_THAT(engine.find_nonfinite(std::span(&batch, 1), 180.0), testing::StartsWith(module));

  Engine resumed(options, Engine::plan(options), nullptr), undisturbed(options, Engine::plan(options), nullptr);
  load(resumed, directory.path() / "before");
  EXPECT_TRUE(run_steps(resumed, options, 4, 6).back().finite);
  undisturbed.initialise(3);
  run_steps(undisturbed, options, 1, 6);
  EXPECT_TRUE(same_bits(masters_of(resumed), masters_of(undisturbed)));
  EXPECT_FALSE(same_bits(masters_of(resumed), before)) << "the comparison sees nothing";
}

std::vector<Planted> planted() {
  std::vector<Planted> all;
  for (const Precision precision : {Precision::kF32, Precision::kBF16, Precision::kMxfp8, Precision::kMxfp8Group32})
    for (const auto& [parameter, module] : {std::pair{"layers.1.moe.router", "layers.1.moe"},
                                            {"layers.0.attention.qkv", "layers.0.attention"},
                                            {"layers.1.moe.down", "layers.1.moe"},
                                            {"head", "head"}})
      all.push_back({precision, parameter, module});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Recipes, CudaNonfinite, testing::ValuesIn(planted()));

TEST(CudaNonfiniteOnce, AStepAfterABrokenOneUpdatesNothing) {
  CISTRON_NEEDS_CARD();
  const EngineOptions options = test::step_options(kCard);
  Engine engine(options, Engine::plan(options), nullptr);
  engine.initialise(3);
  const auto packed = test::random_batch(options.micro_batch_tokens, 9);
  const nn::Batch batch = nn::view_of(packed);
  const auto before = masters_of(engine);
  engine.queue_step(std::span(&batch, 1), 0.0, 1e-3);  // a scale of 1 / 0: gradients are not finite
  engine.queue_step(std::span(&batch, 1), 180.0, 1e-3);
  EXPECT_FALSE(engine.next_result().finite);
  EXPECT_FALSE(engine.next_result().finite) << "a healthy step, but after a broken one";
  EXPECT_TRUE(same_bits(before, masters_of(engine)));
}

}  // namespace
}  // namespace cistron::train
