// The recipe mxfp8 through whole steps on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "cistron/core/error.h"
#include "cistron/train/trainer.h"
#include "tests/train/support.h"

namespace cistron::train {
namespace {

using test::random_batch;
using testing::HasSubstr;

EngineOptions wide_engine(Precision precision) {
  EngineOptions options = test::tiny_engine(precision);
  options.model.hidden = options.model.intermediate = 128;
  options.model.heads = options.model.kv_heads = 4;
  options.model.head_dim = 32;
  options.model.init_std = 0.05;
  return options;
}

struct Trace {
  std::vector<double> losses;
  std::vector<float> masters;
  bool operator==(const Trace&) const = default;
};

/// 20 steps on two batches in turns, so that there is something to learn.
Trace train(const EngineOptions& options, double lr = 3e-3, int threads = 2) {
  ThreadPool pool(threads);
  Engine engine(options, Engine::plan(options), &pool);
  engine.initialise(3);
  Trace trace;
  for (uint64_t s = 0; s < 20; ++s) {
    const auto packed = random_batch(options.micro_batch_tokens, s % 2);
    const nn::Batch batch = nn::view_of(packed);
    const StepResult result = engine.step(std::span(&batch, 1), static_cast<double>(packed.label_count), lr);
    EXPECT_TRUE(result.finite);
    trace.losses.push_back(result.loss);
  }
  for (const auto& entry : engine.parameters().entries()) {
    const auto values = entry.master.span<float>();
    trace.masters.insert(trace.masters.end(), values.begin(), values.end());
  }
  return trace;
}

class Mxfp8Training : public testing::TestWithParam<Precision> {};
INSTANTIATE_TEST_SUITE_P(ScaleGroups, Mxfp8Training, testing::Values(Precision::kMxfp8, Precision::kMxfp8Group32));

// A product in MXFP8 is off by 3.8e-2 of its norm (numerics of e4m3 with scales rounded up). A gradient comes through 4 products
// of each of 2 layers forward, as many back, and its own: sqrt(17) x 3.8e-2 = 0.16 where errors are independent, and so is what
// descent may fall short by. Before any: logits of deviation at most 1 (norm, times an embedding of 0.05 x sqrt(128)) are off by
// sqrt(8) x 3.8e-2, and a mean over some 90 tokens by a ninth of that.
testing::AssertionResult is_as_good_as(const std::vector<double>& got, const std::vector<double>& bf16) {
  for (size_t s = 0; s < bf16.size(); ++s) {
    const double bound = 0.16 * (bf16.front() - std::min(bf16[s], bf16.front())) + 0.012;
    if (!(std::abs(got[s] - bf16[s]) <= bound))
      return testing::AssertionFailure() << "step " << s << ": " << got[s] << " against " << bf16[s] << ", allowed " << bound;
  }
  return testing::AssertionSuccess();
}

TEST_P(Mxfp8Training, LearnsAsBf16Does) {
  const Trace bf16 = train(wide_engine(Precision::kBF16)), mxfp8 = train(wide_engine(GetParam()));
  EXPECT_LT(bf16.losses.back(), bf16.losses.front() - 0.3);
  EXPECT_TRUE(is_as_good_as(mxfp8.losses, bf16.losses));
  EXPECT_NE(mxfp8.losses, bf16.losses) << "nothing was quantised";
  EXPECT_FALSE(is_as_good_as(train(wide_engine(Precision::kBF16), 1.5e-3).losses, bf16.losses)) << "half the rate passes too";
}

TEST_P(Mxfp8Training, RepeatsToTheBit) {
  const Trace once = train(wide_engine(GetParam()));
  EXPECT_EQ(once, train(wide_engine(GetParam())));
  EXPECT_NE(once, train(wide_engine(GetParam()), 3.001e-3)) << "the comparison sees nothing";
}

TEST_P(Mxfp8Training, RecomputingChangesNoBit) {
  const Trace kept = train(wide_engine(GetParam()));
  for (const auto recompute : {model::Recompute::kMlp, model::Recompute::kLayer}) {
    EngineOptions options = wide_engine(GetParam());
    options.recompute = recompute;
    EXPECT_EQ(kept, train(options));
  }
}

TEST_P(Mxfp8Training, CountingUnderflowChangesNoBit) {
  const EngineOptions options = wide_engine(GetParam());
  ThreadPool pool(2);
  Engine engine(options, Engine::plan(options), &pool);
  engine.initialise(3);
  Trace trace;
  for (uint64_t s = 0; s < 20; ++s) {
    const auto packed = random_batch(options.micro_batch_tokens, s % 2);
    const nn::Batch batch = nn::view_of(packed);
    const auto labels = static_cast<double>(packed.label_count);
    const Engine::Underflow lost = engine.underflow(std::span(&batch, 1), labels),
                            again = engine.underflow(std::span(&batch, 1), labels);
    EXPECT_EQ(lost.gradients, again.gradients);
    // Of each layer: inputs of attention's two projections, 128 wide, and of the experts' two, for the two experts of each token.
    const int64_t layers = 2, tokens = 96;
    EXPECT_EQ(lost.weights.elements, layers * 128 * (4 * 128 + 4 * 3 * 128));
    EXPECT_EQ(lost.activations.elements, layers * tokens * (2 * 128 + 2 * 2 * 128));
    EXPECT_LE(lost.gradients.elements, layers * tokens * (4 * 128 + 2 * 3 * 128));
    EXPECT_GT(lost.gradients.elements, layers * tokens * 3 * 128);
    for (const auto& part : {lost.weights, lost.activations, lost.gradients})
      EXPECT_LT(part.zero + part.subnormal, part.elements / 4);
    trace.losses.push_back(engine.step(std::span(&batch, 1), labels, 3e-3).loss);
  }
  EXPECT_EQ(trace.losses, train(options).losses);
}

TEST_P(Mxfp8Training, ThePlanIsWhatTheArenasHold) {
  for (const auto recompute : {model::Recompute::kNone, model::Recompute::kMlp, model::Recompute::kLayer}) {
    EngineOptions options = wide_engine(GetParam());
    options.recompute = recompute;
    const MemoryPlan plan = Engine::plan(options);
    Engine engine(options, plan, nullptr);
    engine.initialise(1);
    const auto packed = random_batch(options.micro_batch_tokens, 5), held_out = random_batch(options.eval_batch_tokens, 6);
    const nn::Batch batch = nn::view_of(packed);
    engine.step(std::span(&batch, 1), static_cast<double>(packed.label_count), 1e-3);
    engine.evaluate(nn::view_of(held_out));
    EXPECT_EQ(engine.peak().parameters, plan.parameters);
    EXPECT_EQ(engine.peak().activations, plan.activations);
  }
}

TEST_P(Mxfp8Training, WhatIsInMxfp8HasNoWorkingCopy) {
  EngineOptions options = wide_engine(GetParam());
  options.mxfp8 = {.bf16_first = 1, .attention = false};
  Engine engine(options, Engine::plan(options), nullptr);
  engine.initialise(1);
  std::vector<std::string> in_mxfp8;
  for (const auto& entry : engine.parameters().entries()) {
    EXPECT_TRUE(entry.parameter->keep_f32 || entry.working.defined() != entry.mx.rows.defined()) << entry.parameter->name;
    if (entry.mx.rows.defined()) in_mxfp8.push_back(entry.parameter->name);
  }
  EXPECT_THAT(in_mxfp8, testing::ElementsAre("layers.1.moe.gate_up", "layers.1.moe.down"));
}

TEST(Mxfp8Layers, NeverTheRouterNormsEmbeddingOrHead) {
  const EngineOptions options = wide_engine(Precision::kMxfp8);
  Engine engine(options, Engine::plan(options), nullptr);
  std::vector<std::string> others;
  for (const auto& entry : engine.parameters().entries())
    if (!entry.mx.rows.defined() && !entry.parameter->name.starts_with("layers.1.")) others.push_back(entry.parameter->name);
  EXPECT_THAT(others, testing::UnorderedElementsAre("embedding", "layers.0.attention_norm", "layers.0.moe_norm",
                                                    "layers.0.moe.router", "final_norm", "head"));
}

class Mxfp8Resume : public testing::TestWithParam<Precision> {
 protected:
  /// The steps' lines in the log, up to what depends on the clock.
  std::vector<std::string> steps_of(const std::string& name) const {
    std::vector<std::string> all;
    std::ifstream file(directory_.path() / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);)
      if (line.find("valid_") == std::string::npos) all.push_back(line.substr(0, line.find("\"tokens_per_second\"")));
    return all;
  }
  void train(const std::string& name, int64_t steps, RunFolder::Mode mode) {
    RunConfig c = test::tiny_run(directory_.path() / "store");
    c.model = wide_engine(GetParam()).model;
    c.recipe = "mxfp8";
    c.mxfp8.group = mx_group(GetParam());
    c.optimizer.schedule = "constant";
    c.train = {.steps = steps, .batch_tokens = 96, .validate_every = 4, .checkpoint_every = 3};
    resolve(c, true);
    ThreadPool pool(2);
    Progress progress({.quiet = true});
    std::atomic<int> signal{0};
    Trainer({.config = c, .run = directory_.path() / name, .mode = mode, .signal = &signal}, pool, progress).run();
  }
  test::TemporaryDirectory directory_;
};
INSTANTIATE_TEST_SUITE_P(ScaleGroups, Mxfp8Resume, testing::Values(Precision::kMxfp8, Precision::kMxfp8Group32));

TEST_P(Mxfp8Resume, ToTheBit) {
  test::write_protein_store(directory_.path() / "store");
  train("whole", 8, RunFolder::Mode::kNew);
  train("cut", 3, RunFolder::Mode::kNew);
  EXPECT_EQ(steps_of("cut").size(), 3U);
  train("cut", 8, RunFolder::Mode::kResume);
  EXPECT_EQ(steps_of("whole").size(), 8U);
  EXPECT_EQ(steps_of("cut"), steps_of("whole"));
}

std::string refusal_of(EngineOptions options) {
  options.require_fused = true;
  return test::refusal_of(options);
}

TEST(RequireFused, SaysWhichPredicateRefused) {
  EXPECT_EQ(refusal_of(test::tiny_engine(Precision::kF32)), "");
  EXPECT_EQ(refusal_of(test::tiny_engine(Precision::kBF16)), "");
  EXPECT_EQ(refusal_of(wide_engine(Precision::kMxfp8)), "");
  EngineOptions loop = test::tiny_engine();
  loop.experts = model::Experts::kLoop;
  EXPECT_THAT(refusal_of(loop), HasSubstr("the experts run one after the other"));
  const std::string refused = refusal_of(wide_engine(Precision::kMxfp8Group32));
  EXPECT_THAT(refused, HasSubstr("moe.require_fused"));
  EXPECT_THAT(refused, HasSubstr("layer 0"));
  EXPECT_THAT(refused, HasSubstr("fused MLP: not fused, its weights are in MXFP8"));
  EXPECT_THAT(refused, HasSubstr("fused MXFP8 MLP: not fused, scale groups of 32"));
}

}  // namespace
}  // namespace cistron::train
