// Whole steps on a card with moments in bf16 and 8 bits, bf16 weights alone, and updates in the backward pass.
#include <gtest/gtest.h>

#include "cistron/dist/single.h"
#include "cistron/train/checkpoint.h"
#include "tests/cuda/step_support.h"

namespace cistron::train {
namespace {

using test::kCard, test::run_steps, test::same_bits, test::step_options;

class CudaEngineStorage : public testing::TestWithParam<nn::OptimizerStorage> {
 protected:
  void SetUp() override { CISTRON_NEEDS_CARD(); }
};

/// Masters and moments, as bits in floats.
std::vector<float> kept(Engine& engine) {
  std::vector<float> all;
  for (const auto array : {&nn::LocalParameters::Entry::master, &nn::LocalParameters::Entry::m, &nn::LocalParameters::Entry::v}) {
    const auto values = test::values_of(engine, array);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

EngineOptions options_with(const nn::OptimizerStorage& storage, const Device& device = kCard) {
  EngineOptions options = step_options(device, Precision::kBF16);
  options.clip = 0;
  options.storage = storage;
  return options;
}

std::vector<float> trained(const EngineOptions& options, int steps) {
  ThreadPool pool(2);
  Engine engine(options, Engine::plan(options), &pool);
  engine.initialise(3);
  for (const StepResult& result : run_steps(engine, options, 1, steps)) EXPECT_TRUE(result.finite);
  return kept(engine);
}

TEST_P(CudaEngineStorage, RecordedLaunchedAndInTheBackwardPassAreOne) {
  EngineOptions options = options_with(GetParam());
  const auto recorded = trained(options, 6);
  EXPECT_TRUE(same_bits(recorded, trained(options, 6)));
  options.record = false;
  EXPECT_TRUE(same_bits(recorded, trained(options, 6)));
  EXPECT_FALSE(same_bits(recorded, trained(options, 5))) << "the comparison sees nothing";
  options.storage.gradients = false;
  EXPECT_TRUE(same_bits(recorded, trained(options, 6)));
  options.record = true;
  EXPECT_TRUE(same_bits(recorded, trained(options, 6)));
}

TEST_P(CudaEngineStorage, CheckpointsAreTheCpusToo) {
  test::TemporaryDirectory directory;
  ThreadPool pool(2);
  const EngineOptions card = options_with(GetParam()), cpu = options_with(GetParam(), {});
  Engine there(card, Engine::plan(card), &pool), here(cpu, Engine::plan(cpu), &pool);
  there.initialise(3);
  run_steps(there, card, 1, 3);
  CheckpointInfo info{.tokenizer = "esm2"};
  info.config.model = card.model;
  save_checkpoint(there.context(), directory.path() / "c", info, slices_of(there.parameters()), false, *dist::single());
  Checkpoint(directory.path() / "c").load(here.context(), here.parameters());
  EXPECT_TRUE(same_bits(kept(here), kept(there)));
  here.refresh_working();
  here.state().step = 3;
  const double on_cpu = run_steps(here, cpu, 4, 4)[0].loss, on_card = run_steps(there, card, 4, 4)[0].loss;
  EXPECT_NEAR(on_cpu, on_card, 0x1p-9 * on_card);
}

INSTANTIATE_TEST_SUITE_P(Storage, CudaEngineStorage,
                         testing::Values(nn::OptimizerStorage{.masters = true, .states = DType::kBF16},
                                         nn::OptimizerStorage{.masters = true, .states = DType::kU8},
                                         nn::OptimizerStorage{.masters = false, .states = DType::kF32},
                                         nn::OptimizerStorage{.masters = false, .states = DType::kBF16},
                                         nn::OptimizerStorage{.masters = false, .states = DType::kU8}));

}  // namespace
}  // namespace cistron::train
