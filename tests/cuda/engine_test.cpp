// Whole training steps on a card: against the CPU, recorded against launched one by one, repeated, resumed.
#include "cistron/train/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cistron/cpu/ref/router.h"
#include "cistron/dist/single.h"
#include "cistron/train/checkpoint.h"
#include "cistron/train/checkpoint_slices.h"
#include "tests/cuda/api_counter.h"
#include "tests/cuda/step_support.h"

namespace cistron::train {
namespace {

using test::kCard;
using test::masters_of;
using test::run_steps;
using test::same_bits;
using test::step_options;

class CudaEngine : public testing::Test {
 protected:
  void SetUp() override { CISTRON_NEEDS_CARD(); }

  /// Masters after `steps` steps from seed 3.
  static std::vector<float> trained(const EngineOptions& options, int steps) {
    Engine engine(options, Engine::plan(options), nullptr);
    engine.initialise(3);
    run_steps(engine, options, 1, steps);
    return masters_of(engine);
  }
};

TEST_F(CudaEngine, StartsFromTheCpusBits) {
  ThreadPool pool(2);
  const EngineOptions cpu = step_options({}), card = step_options(kCard);
  Engine a(cpu, Engine::plan(cpu), &pool), b(card, Engine::plan(card), &pool);
  a.initialise(3);
  b.initialise(3);
  EXPECT_TRUE(same_bits(masters_of(a), masters_of(b)));
  b.initialise(4);
  EXPECT_FALSE(same_bits(masters_of(a), masters_of(b))) << "the comparison sees nothing";
}

TEST_F(CudaEngine, LossesInF32AreTheCpus) {
  ThreadPool pool(2);
  const EngineOptions cpu = step_options({}), card = step_options(kCard);
  Engine a(cpu, Engine::plan(cpu), &pool), b(card, Engine::plan(card), &pool);
  a.initialise(3);
  b.initialise(3);
  const auto expected = run_steps(a, cpu, 1, 20), got = run_steps(b, card, 1, 20);
  for (size_t s = 0; s < expected.size(); ++s) {
    EXPECT_NEAR(got[s].loss, expected[s].loss, 1e-5) << "step " << s + 1;
    EXPECT_NEAR(got[s].grad_norm, expected[s].grad_norm, 1e-3 * expected[s].grad_norm) << "step " << s + 1;
    EXPECT_NEAR(got[s].router.aux_loss, expected[s].router.aux_loss, 1e-4) << "step " << s + 1;
    EXPECT_NEAR(got[s].router.load_max_over_mean, expected[s].router.load_max_over_mean, 1e-2) << "step " << s + 1;
  }
  EXPECT_GT(std::abs(expected[0].loss - expected[19].loss), 1e-3) << "nothing was learned that could differ";
}

double norm(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum);
}

// The gradient of a step in bf16 may be as far from f32's as the CPU's bf16 is, twice.
TEST_F(CudaEngine, GradientsInBf16AreAsGoodAsTheCpus) {
  ThreadPool pool(2);
  const auto gradients = [&](const Device& device, Precision precision) {
    const EngineOptions options = step_options(device, precision);
    Engine engine(options, Engine::plan(options), &pool);
    engine.initialise(3);
    const auto results = run_steps(engine, options, 1, 1);
    EXPECT_TRUE(results[0].finite);
    return std::pair(test::values_of(engine, &nn::LocalParameters::Entry::grad), results[0].loss);
  };
  const auto [exact, exact_loss] = gradients({}, Precision::kF32);
  const auto [cpu, cpu_loss] = gradients({}, Precision::kBF16);
  const auto [card, card_loss] = gradients(kCard, Precision::kBF16);
  EXPECT_LE(norm(card, exact), 2 * norm(cpu, exact));
  EXPECT_NEAR(card_loss, exact_loss, 2 * std::abs(cpu_loss - exact_loss) + 0x1p-9 * exact_loss / std::sqrt(192.0));
  std::vector<float> wrong = exact;
  for (float& x : wrong) x *= 1.1F;
  EXPECT_GT(norm(wrong, exact), 2 * norm(cpu, exact)) << "the bound lets a tenth more through";
}

/// A step's gradients and loss; with `choices` recorded where it is empty, and taken where it is not.
struct OneStep {
  std::vector<float> gradients;
  double loss = 0.0;
};
OneStep one_step(const Device& device, Precision precision, std::vector<int32_t>& choices, ThreadPool& pool) {
  EngineOptions options = test::wide_step_options(device, precision);
  options.record = false;
  Engine engine(options, Engine::plan(options), &pool);
  engine.initialise(3);
  const auto packed = test::random_batch(options.micro_batch_tokens, 1);
  nn::Batch batch = nn::view_of(packed);
  if (choices.empty())
    engine.context().observe = [&](std::string_view module, const Tensor& logits) {
      if (!module.ends_with(".moe.router")) return;
      cpu::ref::Matrix<double> host(logits.dim(0), logits.dim(1));
      ops::read_pieces(engine.context(), logits, [&](std::span<const std::byte> piece) {
        const std::span values(reinterpret_cast<const float*>(piece.data()), piece.size() / sizeof(float));
        host.data.assign(values.begin(), values.end());
      });
      const auto experts = cpu::ref::top_k(cpu::ref::router_probs(host), options.model.top_k);
      choices.insert(choices.end(), experts.data.begin(), experts.data.end());
    };
  else
    batch.choices = Tensor::view(std::span(choices)).reshape({options.model.layers * packed.num_tokens(), options.model.top_k});
  const StepResult result = engine.step(std::span(&batch, 1), static_cast<double>(packed.label_count), 1e-3);
  EXPECT_TRUE(result.finite);
  return {test::values_of(engine, &nn::LocalParameters::Entry::grad), result.loss};
}

// The CPU takes the experts that the card's router chose. The card may be as far from fp32 as the CPU's mxfp8 is, and a tenth
// more. Between the two: what is quantised differs by a rounding of bf16 or two, 2^-8 of its size, and e4m3 steps by some 0.09 of
// it; so one value in 23 falls to the other side of a boundary and is off by a step, where all are off by a step / sqrt(12):
// sqrt(12 / 23) of the error.
TEST_F(CudaEngine, GradientsInMxfp8AreTheCpus) {
  constexpr double kOfError = 0.72;
  ThreadPool pool(2);
  for (const Precision precision : {Precision::kMxfp8, Precision::kMxfp8Group32}) {
    std::vector<int32_t> choices;
    const OneStep card = one_step(kCard, precision, choices, pool), cpu = one_step({}, precision, choices, pool),
                  exact = one_step({}, Precision::kF32, choices, pool);
    const double error = norm(cpu.gradients, exact.gradients);
    EXPECT_LE(norm(card.gradients, exact.gradients), 1.1 * error);
    EXPECT_LE(norm(card.gradients, cpu.gradients), kOfError * error);
    EXPECT_NEAR(card.loss, exact.loss, 2 * std::abs(cpu.loss - exact.loss) + 0x1p-9 * exact.loss / std::sqrt(192.0));
    const OneStep bf16 = one_step({}, Precision::kBF16, choices, pool);
    EXPECT_GT(norm(bf16.gradients, cpu.gradients), kOfError * error) << "what was never quantised passes too";
    std::printf("[          ] mxfp8/%ld: card from CPU %.2e, card from fp32 %.2e, CPU from fp32 %.2e\n",
                static_cast<long>(mx_group(precision)), norm(card.gradients, cpu.gradients),
                norm(card.gradients, exact.gradients), error);
  }
}

TEST_F(CudaEngine, RecordedIsLaunchedToTheBit) {
  for (const Precision precision : {Precision::kF32, Precision::kBF16, Precision::kMxfp8, Precision::kMxfp8Group32}) {
    EngineOptions options = test::wide_step_options(kCard, precision);
    const auto recorded = trained(options, 6);
    options.record = false;
    EXPECT_TRUE(same_bits(recorded, trained(options, 6)));
    EXPECT_FALSE(same_bits(recorded, trained(options, 5))) << "the comparison sees nothing";
  }
}

TEST_F(CudaEngine, TwoRunsAreEqualToTheBit) {
  for (const Precision precision : {Precision::kF32, Precision::kBF16, Precision::kMxfp8, Precision::kMxfp8Group32}) {
    const EngineOptions options = test::wide_step_options(kCard, precision);
    EXPECT_TRUE(same_bits(trained(options, 8), trained(options, 8)));
  }
}

TEST_F(CudaEngine, RecomputingChangesNoBit) {
  EngineOptions options = step_options(kCard, Precision::kBF16);
  const auto kept = trained(options, 4);
  for (const auto recompute : {model::Recompute::kMlp, model::Recompute::kLayer}) {
    options.recompute = recompute;
    EXPECT_TRUE(same_bits(kept, trained(options, 4)));
  }
}

class CudaPlan : public testing::TestWithParam<std::tuple<Precision, model::Recompute>> {};

TEST_P(CudaPlan, IsWhatTheArenasHold) {
  CISTRON_NEEDS_CARD();
  const auto [precision, recompute] = GetParam();
  EngineOptions options = test::wide_step_options(kCard, precision);
  options.recompute = recompute;
  const MemoryPlan plan = Engine::plan(options);
  Engine engine(options, plan, nullptr);
  engine.initialise(1);
  run_steps(engine, options, 1, 3);
  const auto held_out = test::random_batch(128, 6);
  engine.evaluate(nn::view_of(held_out));
  EXPECT_EQ(engine.peak().total(), plan.total());
  EXPECT_EQ(engine.peak().activations, plan.activations);
}
INSTANTIATE_TEST_SUITE_P(Recipes, CudaPlan,
                         testing::Combine(testing::Values(Precision::kBF16, Precision::kMxfp8, Precision::kMxfp8Group32),
                                          testing::Values(model::Recompute::kNone, model::Recompute::kMlp,
                                                          model::Recompute::kLayer)));

TEST_F(CudaEngine, EvaluationIsTheCpus) {
  ThreadPool pool(2);
  const auto nll = [&](const Device& device) {
    const EngineOptions options = step_options(device);
    Engine engine(options, Engine::plan(options), &pool);
    engine.initialise(3);
    run_steps(engine, options, 1, 2);
    const auto held_out = test::random_batch(128, 6);
    const auto sums = engine.evaluate(nn::view_of(held_out));
    EXPECT_EQ(sums.tokens, held_out.label_count);
    return sums.nll / static_cast<double>(sums.tokens);
  };
  EXPECT_NEAR(nll(kCard), nll({}), 1e-5);
}

TEST_F(CudaEngine, ACheckpointGoesOnOnEitherDevice) {
  const test::TemporaryDirectory directory;
  const auto save = [&](Engine& engine, const EngineOptions& options, const char* name) {
    CheckpointInfo info{.tokenizer = "esm2"};
    info.config.model = options.model;
    info.state.step = engine.state().step;
    save_checkpoint(engine.context(), directory.path() / name, info, slices_of(engine.parameters()), false, *dist::single());
  };
  const auto go_on = [&](Engine& engine, const EngineOptions& options, const char* name) {
    const Checkpoint checkpoint(directory.path() / name);
    checkpoint.load(engine.context(), engine.parameters());
    engine.refresh_working();
    engine.state().step = checkpoint.info().state.step;
    return run_steps(engine, options, 4, 6);
  };
  ThreadPool pool(2);
  const EngineOptions cpu = step_options({}), card = step_options(kCard);
  Engine on_cpu(cpu, Engine::plan(cpu), &pool), on_card(card, Engine::plan(card), &pool);
  on_cpu.initialise(3);
  on_card.initialise(3);
  run_steps(on_cpu, cpu, 1, 3);
  run_steps(on_card, card, 1, 3);
  save(on_cpu, cpu, "cpu");
  save(on_card, card, "card");
  const auto cpu_end = run_steps(on_cpu, cpu, 4, 6), card_end = run_steps(on_card, card, 4, 6);

  Engine card_from_card(card, Engine::plan(card), &pool), card_from_cpu(card, Engine::plan(card), &pool),
      cpu_from_card(cpu, Engine::plan(cpu), &pool);
  go_on(card_from_card, card, "card");
  EXPECT_TRUE(same_bits(masters_of(card_from_card), masters_of(on_card)));
  const auto from_cpu = go_on(card_from_cpu, card, "cpu"), from_card = go_on(cpu_from_card, cpu, "card");
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_NEAR(from_cpu[s].loss, cpu_end[s].loss, 1e-5);
    EXPECT_NEAR(from_card[s].loss, card_end[s].loss, 1e-5);
  }
}

class CudaStepCalls : public testing::TestWithParam<int> {};

TEST_P(CudaStepCalls, TheHostNeverWaits) {
  CISTRON_NEEDS_CARD();
  if (const std::string why = cistron::test::ApiCounter::unavailable(); !why.empty()) GTEST_SKIP() << why;
  for (const bool record : {true, false}) {
    EngineOptions options = step_options(kCard, Precision::kBF16, GetParam());
    options.record = record;
    Engine engine(options, Engine::plan(options), nullptr);
    engine.initialise(3);
    run_steps(engine, options, 1, 4);
    cistron::test::ApiCounter counter;
    const auto results = run_steps(engine, options, 5, 8);
    EXPECT_THAT(counter.waits(), testing::IsEmpty()) << (record ? "recorded" : "launched one by one");
    EXPECT_GT(counter.calls(), 0);
    EXPECT_TRUE(results.back().finite);
    std::printf("[          ] %d experts, %s: %d driver calls in 4 steps, %ld kernels recorded\n", GetParam(),
                record ? "recorded" : "launched one by one", counter.calls(), static_cast<long>(engine.launches()));
  }
}

INSTANTIATE_TEST_SUITE_P(Experts, CudaStepCalls, testing::Values(8, 64));

TEST_F(CudaEngine, LaunchesDoNotDependOnTheNumberOfExperts) {
  const auto launches = [](int64_t experts) {
    const EngineOptions options = step_options(kCard, Precision::kBF16, experts);
    Engine engine(options, Engine::plan(options), nullptr);
    engine.initialise(3);
    run_steps(engine, options, 1, 4);
    return engine.launches();
  };
  const int64_t few = launches(8), many = launches(64);
  EXPECT_GT(few, 0);
  // cuBLASLt may cut one or the other of a router's three products into parts, which takes a launch more: nothing for each
  // expert.
  constexpr int64_t kRouterProducts = 3 * 2;
  EXPECT_LE(std::abs(many - few), kRouterProducts) << few << " launches with 8 experts, " << many << " with 64";
}

TEST_F(CudaEngine, TheCounterSeesWaits) {
  if (const std::string why = cistron::test::ApiCounter::unavailable(); !why.empty()) GTEST_SKIP() << why;
  const EngineOptions options = step_options(kCard);
  Engine engine(options, Engine::plan(options), nullptr);
  engine.initialise(3);
  const cistron::test::ApiCounter counter;
  masters_of(engine);
  EXPECT_GE(counter.waits().size(), 2U) << "a copy to the host, and the wait for it";
}

}  // namespace
}  // namespace cistron::train
