#include "cistron/train/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "cistron/core/error.h"
#include "cistron/train/what_would_fit.h"
#include "tests/train/support.h"

namespace cistron::train {
namespace {

using test::random_batch;
using test::tiny_engine;

// The losses and gradient norms of some steps, and the masters after them, as bytes.
struct Trace {
  std::vector<double> numbers;
  std::vector<float> masters;
  bool operator==(const Trace&) const = default;
};

Trace train(const EngineOptions& options, int threads, int steps, int micro_batches = 1) {
  ThreadPool pool(threads);
  Engine engine(options, Engine::plan(options), &pool);
  engine.initialise(3);
  Trace trace;
  for (int s = 0; s < steps; ++s) {
    std::vector<data::PackedBatch> packed;
    std::vector<nn::Batch> batches;
    double labels = 0;
    for (int j = 0; j < micro_batches; ++j)
      packed.push_back(random_batch(options.micro_batch_tokens, static_cast<uint64_t>(s * micro_batches + j)));
    for (const auto& batch : packed) {
      batches.push_back(nn::view_of(batch));
      labels += static_cast<double>(batch.label_count);
    }
    const StepResult result = engine.step(batches, labels, 1e-2);
    EXPECT_TRUE(result.finite);
    trace.numbers.insert(trace.numbers.end(), {result.loss, result.grad_norm, result.router.entropy, result.router.aux_loss});
  }
  for (const auto& entry : engine.parameters().entries()) {
    const auto values = entry.master.span<float>();
    trace.masters.insert(trace.masters.end(), values.begin(), values.end());
  }
  return trace;
}

class EnginePlan : public testing::TestWithParam<std::tuple<model::Recompute, model::Experts>> {};

TEST_P(EnginePlan, EqualsWhatTheArenasHold) {
  EngineOptions options = tiny_engine();
  std::tie(options.recompute, options.experts) = GetParam();
  ThreadPool pool(2);
  const MemoryPlan plan = Engine::plan(options);
  Engine engine(options, plan, &pool);
  engine.initialise(1);
  const auto packed = random_batch(96, 5), held_out = random_batch(128, 6);
  const nn::Batch batch = nn::view_of(packed);
  engine.step(std::span(&batch, 1), static_cast<double>(packed.label_count), 1e-3);
  engine.evaluate(nn::view_of(held_out));
  const MemoryPlan peak = engine.peak();
  EXPECT_EQ(peak.parameters, plan.parameters);
  EXPECT_EQ(peak.gradients, plan.gradients);
  EXPECT_EQ(peak.optimizer, plan.optimizer);
  EXPECT_EQ(peak.activations, plan.activations);
  EXPECT_GT(plan.activations, 96 * 32 * 4);
  const int64_t parameters = 4 * options.model.parameters();
  EXPECT_GE(plan.parameters, parameters);
  EXPECT_LE(plan.parameters, parameters + 256 * 64);
}

INSTANTIATE_TEST_SUITE_P(Engine, EnginePlan,
                         testing::Combine(testing::Values(model::Recompute::kNone, model::Recompute::kMlp,
                                                          model::Recompute::kLayer),
                                          testing::Values(model::Experts::kGrouped, model::Experts::kLoop)));

TEST(Engine, AStepThatNeedsMoreThanThePlanIsRefused) {
  const EngineOptions options = tiny_engine();
  MemoryPlan plan = Engine::plan(options);
  plan.activations /= 2;
  Engine engine(options, plan, nullptr);
  engine.initialise(1);
  const auto packed = random_batch(96, 5);
  const nn::Batch batch = nn::view_of(packed);
  EXPECT_THROW(engine.step(std::span(&batch, 1), 1.0, 1e-3), Error);
}

TEST(Engine, WhatWouldFitIsTheSmallestChangeThatDoes) {
  EngineOptions options = tiny_engine();
  const auto total = [&](model::Recompute recompute, int64_t tokens) {
    EngineOptions changed = options;
    changed.recompute = recompute;
    changed.micro_batch_tokens = tokens;
    return Engine::plan(changed).total();
  };
  using model::Recompute;
  EXPECT_THAT(what_would_fit(options, total(Recompute::kMlp, 96)), testing::EndsWith("with train.recompute = \"mlp\""));
  EXPECT_THAT(what_would_fit(options, total(Recompute::kLayer, 96)), testing::EndsWith("with train.recompute = \"layer\""));
  const int64_t half = total(Recompute::kLayer, 48);
  ASSERT_LT(half, total(Recompute::kLayer, 96));
  EXPECT_THAT(what_would_fit(options, half), testing::HasSubstr("micro_batch_tokens = 48"));
  EXPECT_THAT(what_would_fit(options, 1000), testing::HasSubstr("smaller model"));
}

TEST(Engine, AMetaRunPlansForTheDeviceThatItIsFor) {
  EngineOptions cpu = tiny_engine(), card = tiny_engine();
  card.device = {DeviceKind::kCuda, 0};
  const MemoryPlan a = Engine::plan(cpu), b = Engine::plan(card);
  EXPECT_EQ(a.parameters, b.parameters);
  EXPECT_GE(b.activations, a.activations + 4 * 127 * 32 * 4) << "each of 4 experts may leave 127 pad rows";
}

TEST(Engine, SameBitsForAnyNumberOfThreads) {
  const Trace one = train(tiny_engine(), 1, 4);
  EXPECT_EQ(one, train(tiny_engine(), 2, 4));
  EXPECT_EQ(one, train(tiny_engine(), 3, 4));
  EXPECT_NE(one.masters, train(tiny_engine(), 1, 3).masters) << "the comparison sees nothing";
}

TEST(Engine, RecomputingChangesNoBit) {
  const Trace kept = train(tiny_engine(), 2, 3);
  for (const auto recompute : {model::Recompute::kMlp, model::Recompute::kLayer}) {
    EngineOptions options = tiny_engine();
    options.recompute = recompute;
    EXPECT_EQ(kept, train(options, 2, 3));
  }
}

TEST(Engine, EveryParameterChanges) {
  const EngineOptions options = tiny_engine();
  ThreadPool pool(2);
  Engine engine(options, Engine::plan(options), &pool);
  engine.initialise(3);
  std::vector<std::vector<float>> before;
  for (const auto& entry : engine.parameters().entries()) {
    const auto values = entry.master.span<float>();
    before.emplace_back(values.begin(), values.end());
  }
  const auto packed = random_batch(96, 1);
  const nn::Batch batch = nn::view_of(packed);
  engine.step(std::span(&batch, 1), static_cast<double>(packed.label_count), 1e-3);
  for (size_t i = 0; i < before.size(); ++i) {
    const auto& entry = engine.parameters().entries()[i];
    const auto after = entry.master.span<float>();
    // Each expert too: an expert that never trains is easily overlooked.
    const size_t parts = entry.master.shape().rank() == 3 ? static_cast<size_t>(entry.master.dim(0)) : 1;
    for (size_t part = 0; part < parts; ++part) {
      const size_t size = after.size() / parts;
      EXPECT_FALSE(std::equal(after.begin() + static_cast<ptrdiff_t>(part * size),
                              after.begin() + static_cast<ptrdiff_t>((part + 1) * size),
                              before[i].begin() + static_cast<ptrdiff_t>(part * size)))
          << entry.parameter->name << " part " << part;
    }
  }
}

TEST(Engine, LossFalls) {
  EngineOptions options = tiny_engine();
  ThreadPool pool(2);
  Engine engine(options, Engine::plan(options), &pool);
  engine.initialise(3);
  const auto packed = random_batch(96, 1);
  const nn::Batch batch = nn::view_of(packed);
  const auto step = [&] { return engine.step(std::span(&batch, 1), static_cast<double>(packed.label_count), 1e-2).loss; };
  const double first = step();
  EXPECT_NEAR(first, std::log(33.0), 0.2);  // nothing is known yet
  double last = first;
  for (int i = 0; i < 60; ++i) last = step();
  EXPECT_LT(last, first - 1.0);  // it learns one batch by heart
}

TEST(Engine, MicroBatchesGiveTheGradientOfTheWholeBatch) {
  // One batch of 96 tokens against the same sequences in two of 48: the sums run in another order, so compare to rounding.
  // Without auxiliary losses, whose statistics are each micro-batch's own.
  EngineOptions whole = tiny_engine(), half = tiny_engine();
  whole.model.aux_loss = half.model.aux_loss = whole.model.z_loss = half.model.z_loss = 0;
  half.micro_batch_tokens = 48;
  const auto first = random_batch(48, 1), second = random_batch(48, 2);
  data::PackedBatch joined;
  for (const auto* part : {&first, &second})
    for (int64_t s = 0; s < part->num_sequences(); ++s) {
      const auto begin = part->cu_seqlens[static_cast<size_t>(s)], end = part->cu_seqlens[static_cast<size_t>(s) + 1];
      std::copy(part->tokens.begin() + begin, part->tokens.begin() + end, joined.open_sequence(end - begin).begin());
      joined.close_sequence();
    }
  const auto norm_of = [](const EngineOptions& options, const std::vector<nn::Batch>& batches, double labels) {
    Engine engine(options, Engine::plan(options), nullptr);
    engine.initialise(3);
    const auto result = engine.step(batches, labels, 1e-3);
    return std::pair(result.loss, result.grad_norm);
  };
  const auto labels = static_cast<double>(joined.label_count);
  const auto [loss, norm] = norm_of(whole, {nn::view_of(joined)}, labels);
  const auto [loss2, norm2] = norm_of(half, {nn::view_of(first), nn::view_of(second)}, labels);
  constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
  EXPECT_NEAR(loss, loss2, 96 * kEpsilon * loss);
  EXPECT_NEAR(norm, norm2, 96 * kEpsilon * norm);
  const auto [loss3, norm3] = norm_of(half, {nn::view_of(first), nn::view_of(first)}, labels);
  EXPECT_GT(std::abs(norm3 - norm), 96 * kEpsilon * norm) << "the tolerance lets everything through";
}

TEST(Engine, ANumberThatIsNotFiniteIsFoundAndNothingIsUpdated) {
  for (const char* name : {"embedding", "layers.1.moe.router", "layers.0.attention.qkv", "head"}) {
    const EngineOptions options = tiny_engine();
    Engine engine(options, Engine::plan(options), nullptr);
    engine.initialise(3);
    auto& planted = engine.parameters().find(name);
    for (float& value : planted.master.span<float>()) value = std::numeric_limits<float>::quiet_NaN();
    const auto& other = engine.parameters().find("layers.1.moe.down");
    const auto values = other.master.span<float>();
    const std::vector<float> before(values.begin(), values.end());
    const auto packed = random_batch(96, 1);
    const nn::Batch batch = nn::view_of(packed);
    EXPECT_FALSE(engine.step(std::span(&batch, 1), 90.0, 1e-3).finite) << name;
    EXPECT_TRUE(std::equal(before.begin(), before.end(), values.begin())) << name;
    const std::string module = engine.find_nonfinite(std::span(&batch, 1), 90.0);
    EXPECT_THAT(module, testing::StartsWith(std::string(name).substr(0, std::string(name).rfind(".qkv")))) << name;
  }
}

TEST(Engine, AHealthyStepShowsNoModule) {
  const EngineOptions options = tiny_engine();
  Engine engine(options, Engine::plan(options), nullptr);
  engine.initialise(3);
  const auto packed = random_batch(96, 1);
  const nn::Batch batch = nn::view_of(packed);
  EXPECT_EQ(engine.find_nonfinite(std::span(&batch, 1), 90.0), "");
}

TEST(Engine, EvaluationIsTheMeanOfTheTrainingLoss) {
  EngineOptions options = tiny_engine();
  options.eval_batch_tokens = 96;
  Engine engine(options, Engine::plan(options), nullptr);
  engine.initialise(3);
  const auto packed = random_batch(96, 1);
  const nn::Batch batch = nn::view_of(packed);
  const auto sums = engine.evaluate(batch);
  EXPECT_EQ(sums.tokens, packed.label_count);
  const auto step = engine.step(std::span(&batch, 1), static_cast<double>(packed.label_count), 1e-3);
  EXPECT_NEAR(sums.nll / static_cast<double>(sums.tokens), step.loss, 1e-6 * step.loss);
}

}  // namespace
}  // namespace cistron::train
