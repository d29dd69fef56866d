// Training on several ranks that share the parameters: the numbers must be those of one rank, to rounding.
#include "cistron/train/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "cistron/core/error.h"
#include "cistron/core/host_memory.h"
#include "tests/train/ranks_support.h"

namespace cistron::train {
namespace {

using test::RanksOptions;
using test::tiny_engine;

constexpr int64_t kTokens = 96;

// Numbers of each step, and what a parameter's owned rows are at the end, put together from all ranks.
struct Trace {
  std::vector<double> losses, norms, held_out;
  std::map<std::string, std::vector<float>> masters;
};

void collect(Engine& engine, std::map<std::string, std::vector<float>>& masters) {
  for (const auto& entry : engine.parameters().entries()) {
    auto& whole = masters[entry.parameter->name];
    whole.resize(static_cast<size_t>(entry.parameter->shape.numel()));
    const auto values = entry.owned(entry.master).span<float>();
    const int64_t first = entry.first_row() + entry.rows.owned.begin - entry.rows.held.begin;
    std::ranges::copy(values, whole.begin() + first * nn::row_width(entry.parameter->shape));
  }
}

Trace train(const EngineOptions& options, const RanksOptions& ranks, int steps, double weight_error = 1.0) {
  Trace trace;
  std::mutex mutex;
  test::run_engines(options, ranks, [&](Engine& engine, dist::Communicator& world) {
    for (int64_t step = 0; step < steps; ++step) {
      const test::RankBatches batches(test::step_batches(kTokens, ranks.micro_batches, step), world.size(), world.rank());
      const auto result = engine.step(batches.views(), weight_error * batches.label_weight(), 1e-3);
      const test::RankBatches held_out({test::random_batch(kTokens, 999)}, world.size(), world.rank());
      const auto evaluation = engine.evaluate(held_out.views()[0]);
      if (world.rank() != 0) continue;
      trace.losses.push_back(result.loss);
      trace.norms.push_back(result.grad_norm);
      trace.held_out.push_back(evaluation.nll / static_cast<double>(evaluation.tokens));
    }
    const std::lock_guard lock(mutex);
    collect(engine, trace.masters);
  });
  return trace;
}

EngineOptions model() {
  EngineOptions options = tiny_engine();
  options.eval_batch_tokens = kTokens;
  options.model.hidden = 160;  // more than one block of 128 rows, so that vectors are cut too
  options.model.head_dim = 40;
  return options;
}

constexpr double kRelative = 1e-5;

bool is_near(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(a, b, [](double x, double y) { return std::abs(x - y) <= kRelative * std::abs(y); });
}

class Ranks : public testing::TestWithParam<RanksOptions> {};

TEST_P(Ranks, GiveTheNumbersOfOne) {
  const EngineOptions options = model();
  const Trace one = train(options, {.micro_batches = GetParam().micro_batches}, 5);
  const Trace many = train(options, GetParam(), 5);
  EXPECT_TRUE(is_near(many.losses, one.losses)) << testing::PrintToString(many.losses) << testing::PrintToString(one.losses);
  EXPECT_TRUE(is_near(many.norms, one.norms)) << testing::PrintToString(many.norms) << testing::PrintToString(one.norms);
  EXPECT_TRUE(is_near(many.held_out, one.held_out));
  const Trace wrong = train(options, GetParam(), 5, /*weight_error=*/1.01);
  EXPECT_FALSE(is_near(wrong.norms, one.norms)) << "the tolerance lets everything through";
}

TEST_P(Ranks, RepeatBitForBit) {
  const Trace first = train(model(), GetParam(), 3), second = train(model(), GetParam(), 3);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.norms, second.norms);
  EXPECT_EQ(first.masters, second.masters);
}

TEST_P(Ranks, StartAlikeInEveryLayout) { EXPECT_EQ(train(model(), GetParam(), 0).masters, train(model(), {}, 0).masters); }

TEST_P(Ranks, ChangeEveryParameter) {
  const auto before = train(model(), GetParam(), 0).masters;
  const auto after = train(model(), GetParam(), 1).masters;
  for (const auto& [name, values] : after) {
    const auto& old = before.at(name);
    size_t changed = 0;
    for (size_t i = 0; i < values.size(); ++i) changed += values[i] != old[i] ? 1 : 0;
    EXPECT_GT(changed, values.size() * 9 / 10) << name;  // some tokens of the vocabulary may not occur
  }
}

TEST_P(Ranks, HoldWhatThePlanSays) {
  const EngineOptions options = model();
  test::run_engines(options, GetParam(), [&](Engine& engine, dist::Communicator& world) {
    const MemoryPlan plan = Engine::plan(test::for_rank(options, GetParam(), world.rank()));
    for (int64_t step = 0; step < 3; ++step) {
      const test::RankBatches batches(test::step_batches(kTokens, GetParam().micro_batches, step), world.size(), world.rank());
      engine.step(batches.views(), batches.label_weight(), 1e-2);
      engine.evaluate(batches.views()[0]);
    }
    const MemoryPlan peak = engine.peak();
    EXPECT_EQ(peak.parameters, plan.parameters);
    EXPECT_EQ(peak.gradients, plan.gradients);
    EXPECT_EQ(peak.optimizer, plan.optimizer);
    EXPECT_EQ(peak.gathered, plan.gathered);
    EXPECT_LE(peak.activations, plan.activations);
  });
}

// Sequences of one token share out evenly, so that the first rank gets all that is planned for it.
TEST_P(Ranks, FillThePlanToWithinThreePercentWhereTheBatchIsFull) {
  const EngineOptions options = model();
  RanksOptions ranks = GetParam();
  ranks.longest = 1;
  data::PackedBatch global;
  const Rng rng(5, 1);
  for (uint64_t i = 0; i < kTokens; ++i) {
    global.open_sequence(1)[0] = static_cast<int32_t>(rng.below(i, 33));
    global.close_sequence();
  }
  test::run_engines(options, ranks, [&](Engine& engine, dist::Communicator& world) {
    const std::vector<data::PackedBatch> step(static_cast<size_t>(ranks.micro_batches), global);
    for (int i = 0; i < 2; ++i) {
      const test::RankBatches batches(step, world.size(), world.rank());
      engine.step(batches.views(), 1.0, 1e-3);
      engine.evaluate(batches.views()[0]);
    }
    EngineOptions mine = test::for_rank(options, ranks, world.rank());
    mine.headroom = engine.headroom();
    const int64_t plan = Engine::plan(mine).total(), peak = engine.peak().total();
    EXPECT_LE(peak, plan);
    if (world.rank() != 0) return;
    EXPECT_GE(103 * peak, 100 * plan) << peak << " of " << plan;
  });
}

TEST(RanksOfOneMachine, NeedTheirMemoryTogether) {
  dist::run_ranks(3, [](dist::Communicator& world) {
    RunConfig config;
    config.model = test::tiny_model();
    const cistron::train::Ranks ranks(world, config, 0);
    const int64_t available = available_host_memory();
    EXPECT_NO_THROW(ranks.check_memory(available / 10));
    EXPECT_THAT([&] { ranks.check_memory(available / 10 * 6); },
                testing::ThrowsMessage<Error>(testing::HasSubstr("not enough memory for the ranks of this machine")));
    EXPECT_NO_THROW(ranks.check_memory(world.rank() == 0 ? available / 10 * 6 : 0));
  });
}

TEST(RanksWithoutAMesh, AreRefused) {
  for (const bool fsdp : {false, true}) {
    EngineOptions options = model();
    options.sharing = {.shape = {2, 1}, .fsdp = fsdp};
    EXPECT_THAT([&] { Engine(options, Engine::plan(options), nullptr, nullptr); },
                testing::ThrowsMessage<Error>(testing::HasSubstr("no mesh is given")));
  }
}

std::string name_of(const testing::TestParamInfo<RanksOptions>& info) {
  const auto& o = info.param;
  return fmt::format("{}x{}{}{}{}", o.mesh.dp, o.mesh.ep, o.fsdp ? "" : "Replicated", o.reshard_after_forward ? "" : "Kept",
                     o.micro_batches == 1 ? "OneMicroBatch" : "");
}

INSTANTIATE_TEST_SUITE_P(Layouts, Ranks,
                         testing::Values(RanksOptions{.mesh = {2, 1}}, RanksOptions{.mesh = {3, 1}}, RanksOptions{.mesh = {4, 1}},
                                         RanksOptions{.mesh = {2, 1}, .micro_batches = 1},
                                         RanksOptions{.mesh = {3, 1}, .reshard_after_forward = false},
                                         RanksOptions{.mesh = {2, 1}, .reshard_after_forward = false, .micro_batches = 1},
                                         RanksOptions{.mesh = {3, 1}, .fsdp = false}, RanksOptions{.mesh = {1, 2}},
                                         RanksOptions{.mesh = {2, 2}}, RanksOptions{.mesh = {1, 3}}, RanksOptions{.mesh = {3, 2}},
                                         RanksOptions{.mesh = {2, 2}, .fsdp = false}),
                         name_of);

}  // namespace
}  // namespace cistron::train
