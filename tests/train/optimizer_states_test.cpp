// Training with moments in bf16 and 8 bits, with bf16 weights alone, and with updates in the backward pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "cistron/core/error.h"
#include "cistron/dist/single.h"
#include "cistron/train/checkpoint.h"
#include "tests/train/ranks_support.h"

namespace cistron::train {
namespace {

using test::RanksOptions, test::tiny_engine;
using testing::HasSubstr;

constexpr int64_t kTokens = 96;

EngineOptions engine_with(const nn::OptimizerStorage& storage, Precision precision = Precision::kBF16) {
  EngineOptions options = tiny_engine(precision);
  options.model.hidden = 160;  // more than a block of states, and of shards
  options.model.head_dim = 40;
  options.eval_batch_tokens = 0;
  options.storage = storage;
  if (!storage.gradients) options.clip = 0;
  return options;
}

const std::vector<nn::OptimizerStorage>& storages() {
  static const std::vector<nn::OptimizerStorage> all{{.masters = true, .states = DType::kBF16},
                                                     {.masters = true, .states = DType::kU8},
                                                     {.masters = false, .states = DType::kF32},
                                                     {.masters = false, .states = DType::kBF16},
                                                     {.masters = false, .states = DType::kU8}};
  return all;
}

std::string name_of_storage(const nn::OptimizerStorage& s) {
  return fmt::format("{}{}{}", s.masters ? "Masters" : "NoMasters", name_of(s.states), s.gradients ? "" : "InBackward");
}

/// What is owned of each tensor that a checkpoint keeps, put together over all ranks.
using Kept = std::map<std::string, std::vector<std::byte>>;

void collect(Engine& engine, Kept& kept) {
  for (const auto& entry : engine.parameters().entries()) {
    const Parameter& p = *entry.parameter;
    const int64_t first = entry.first_row() + entry.rows.owned.begin - entry.rows.held.begin;
    for (const auto& [suffix, tensor] : {std::pair("", entry.master), std::pair(".m", entry.m), std::pair(".v", entry.v),
                                         std::pair(".m.scale", entry.m_scale), std::pair(".v.scale", entry.v_scale)}) {
      if (!tensor.defined() || entry.rows.owned.count == 0) continue;
      const Tensor part = entry.owned(tensor);
      const int64_t row_bytes = part.bytes() / entry.rows.owned.count;
      auto& whole = kept[p.name + suffix];
      whole.resize(static_cast<size_t>(nn::num_rows(p.shape) * row_bytes));
      std::memcpy(whole.data() + first * row_bytes, part.raw(), static_cast<size_t>(part.bytes()));
    }
  }
}

CheckpointInfo info_of(const EngineOptions& options) {
  CheckpointInfo info{.tokenizer = "esm2"};
  info.config.model = options.model;
  return info;
}

StepResult take_step(Engine& engine, int64_t step, const RanksOptions& ranks, dist::Communicator& world, double lr = 1e-2) {
  const test::RankBatches batches(test::step_batches(kTokens, ranks.micro_batches, step), world.size(), world.rank());
  return engine.step(batches.views(), batches.label_weight(), lr);
}

struct Trace {
  std::vector<double> losses, norms;
  Kept kept;
};

Trace train(const EngineOptions& options, const RanksOptions& ranks, int64_t steps, double lr = 1e-2) {
  Trace trace;
  std::mutex mutex;
  test::run_engines(options, ranks, [&](Engine& engine, dist::Communicator& world) {
    for (int64_t step = 0; step < steps; ++step) {
      const StepResult result = take_step(engine, step, ranks, world, lr);
      EXPECT_TRUE(result.finite);
      if (world.rank() != 0) continue;
      trace.losses.push_back(result.loss);
      trace.norms.push_back(result.grad_norm);
    }
    const std::lock_guard lock(mutex);
    collect(engine, trace.kept);
  });
  return trace;
}

class OptimizerStates : public testing::TestWithParam<nn::OptimizerStorage> {};

// Eight batches over and over: what is learnt of them with f32 throughout must be learnt to within a twentieth.
TEST_P(OptimizerStates, TrainATinyModelAsF32Does) {
  const auto last_loss = [](const nn::OptimizerStorage& storage, double lr, double* first = nullptr) {
    double sum = 0;
    test::run_engines(engine_with(storage), {.micro_batches = 1}, [&](Engine& engine, dist::Communicator& world) {
      constexpr int64_t kBatches = 8, kRounds = 12;
      for (int64_t i = 0; i < kBatches * kRounds; ++i) {
        const double loss = take_step(engine, i % kBatches, {.micro_batches = 1}, world, lr).loss;
        if (first != nullptr && i == 0) *first = loss;
        if (i >= kBatches * (kRounds - 1)) sum += loss / kBatches;
      }
    });
    return sum;
  };
  double first = 0;
  const double f32 = last_loss({}, 1e-3, &first), gained = first - f32;
  EXPECT_GT(gained, 1.0);
  EXPECT_NEAR(last_loss(GetParam(), 1e-3), f32, gained / 20);
  EXPECT_GT(last_loss(GetParam(), 2e-4), f32 + gained / 20) << "a fifth of the learning rate would pass, too";
}

TEST_P(OptimizerStates, ChangeEveryParameter) {
  const RanksOptions one{.micro_batches = 1};
  const Kept before = train(engine_with(GetParam()), one, 0).kept, after = train(engine_with(GetParam()), one, 1).kept;
  for (const auto& [name, bytes] : after) EXPECT_NE(bytes, before.at(name)) << name;
}

TEST_P(OptimizerStates, TakeTheMemoryThatTheyShould) {
  const EngineOptions options = engine_with(GetParam());
  const auto parameters = options.model.parameters();
  const MemoryPlan plan = Engine::plan(options);
  const int64_t per_state = size_of(GetParam().states), weights = GetParam().masters ? 6 : 2;
  const int64_t f32_ones = options.model.layers * (4 + 2) * options.model.hidden + options.model.hidden;  // norms and routers
  const int64_t rounding = 256 * 8 * 64, scales = GetParam().states == DType::kU8 ? parameters / 20 : 0;
  EXPECT_NEAR(plan.parameters, weights * parameters, 4 * f32_ones + rounding);
  EXPECT_NEAR(plan.optimizer, 2 * per_state * parameters + scales / 2, 8 * f32_ones + rounding + scales);
  test::run_engines(options, {.micro_batches = 1}, [&](Engine& engine, dist::Communicator& world) {
    take_step(engine, 0, {.micro_batches = 1}, world);
    EXPECT_EQ(engine.peak().optimizer, plan.optimizer);
    EXPECT_EQ(engine.peak().gradients, plan.gradients);
  });
}

TEST_P(OptimizerStates, ComeBackFromACheckpointToTheBitInEveryLayout) {
  const EngineOptions options = engine_with(GetParam());
  const std::vector<RanksOptions> layouts{{.mesh = {}, .micro_batches = 1},
                                          {.mesh = {.dp = 2}, .micro_batches = 1},
                                          {.mesh = {.ep = 2}, .micro_batches = 1},
                                          {.mesh = {.dp = 2}, .fsdp = false, .micro_batches = 1}};
  test::TemporaryDirectory directory;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const auto path = directory.path() / fmt::format("{}", i);
    Kept saved, went_on;
    std::mutex mutex;
    test::run_engines(options, layouts[i], [&](Engine& engine, dist::Communicator& world) {
      for (int64_t step = 0; step < 2; ++step) take_step(engine, step, layouts[i], world);
      CheckpointInfo info = info_of(options);
      info.state.step = 2;
      save_checkpoint(engine.context(), path, info, slices_of(engine.parameters()), false, world);
      {
        const std::lock_guard lock(mutex);
        collect(engine, saved);
      }
      take_step(engine, 2, layouts[i], world);
      const std::lock_guard lock(mutex);
      collect(engine, went_on);
    });
    for (const RanksOptions& to : layouts) {
      Kept loaded, resumed;
      test::run_engines(options, to, [&](Engine& engine, dist::Communicator& world) {
        const Checkpoint checkpoint(path);
        checkpoint.load(engine.context(), engine.parameters());
        engine.refresh_working();
        engine.state().step = 2;
        {
          const std::lock_guard lock(mutex);
          collect(engine, loaded);
        }
        take_step(engine, 2, to, world);
        const std::lock_guard lock(mutex);
        collect(engine, resumed);
      });
      EXPECT_EQ(loaded, saved);
      const bool same = to.mesh.dp == layouts[i].mesh.dp && to.mesh.ep == layouts[i].mesh.ep && to.fsdp == layouts[i].fsdp;
      if (same) {
        EXPECT_EQ(resumed, went_on);
      }
    }
    EXPECT_NE(saved, went_on) << "the comparison sees nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(Storage, OptimizerStates, testing::ValuesIn(storages()),
                         [](const auto& info) { return name_of_storage(info.param); });

// After a step from nothing, where gradients agree to rounding, a number is kept otherwise only where that rounding tips a
// choice: the rows that ranks hold take the same random numbers as on one rank.
TEST(OptimizerStatesLayouts, RoundAlikeInEveryLayout) {
  for (const nn::OptimizerStorage& storage : {nn::OptimizerStorage{.states = DType::kU8}, {.states = DType::kBF16}}) {
    const EngineOptions options = engine_with(storage, Precision::kF32);
    const Kept one = train(options, {.micro_batches = 1}, 1).kept;
    for (const RanksOptions& ranks :
         {RanksOptions{.mesh = {.dp = 2}, .micro_batches = 1}, {.mesh = {.ep = 2}, .micro_batches = 1}}) {
      const Kept many = train(options, ranks, 1).kept;
      for (const auto& [name, bytes] : one) {
        if (!name.ends_with(".m") && !name.ends_with(".v")) continue;
        const auto& others = many.at(name);
        ASSERT_EQ(bytes.size(), others.size()) << name;
        if (name.find("norm") != std::string::npos || name.find("router") != std::string::npos) continue;  // f32
        size_t differ = 0;
        for (size_t i = 0; i < bytes.size(); ++i) differ += bytes[i] != others[i] ? 1 : 0;
        EXPECT_LE(differ, 2 + bytes.size() / 500) << name;
      }
    }
  }
}

TEST(OptimizerStatesCheckpoint, EightBitsAndOthersAreNotConverted) {
  test::TemporaryDirectory directory;
  const auto path = directory.path() / "c";
  test::run_engines(engine_with({.states = DType::kU8}), {.micro_batches = 1}, [&](Engine& engine, dist::Communicator& world) {
    CheckpointInfo info = info_of(tiny_engine());
    info.config.optimizer.state_dtype = "int8";
    save_checkpoint(engine.context(), path, info, slices_of(engine.parameters()), false, world);
  });
  test::run_engines(engine_with({}), {.micro_batches = 1}, [&](Engine& engine, dist::Communicator&) {
    EXPECT_THAT([&] { Checkpoint(path).load(engine.context(), engine.parameters()); },
                testing::ThrowsMessage<Error>(HasSubstr("resume with optimizer.state_dtype = \"int8\"")));
  });
}

TEST(OptimizerStatesCheckpoint, F32AndBf16AreConverted) {
  test::TemporaryDirectory directory;
  const nn::OptimizerStorage small{.masters = false, .states = DType::kBF16};
  const auto path = directory.path() / "c", back = directory.path() / "d";
  const auto save = [](Engine& engine, const std::filesystem::path& to, dist::Communicator& world) {
    save_checkpoint(engine.context(), to, info_of(tiny_engine()), slices_of(engine.parameters()), false, world);
  };
  const auto load = [](Engine& engine, const std::filesystem::path& from, Kept& kept) {
    Checkpoint(from).load(engine.context(), engine.parameters());
    collect(engine, kept);
  };
  Kept first, f32, again;
  test::run_engines(engine_with(small), {.micro_batches = 1}, [&](Engine& engine, dist::Communicator& world) {
    take_step(engine, 0, {.micro_batches = 1}, world);
    collect(engine, first);
    save(engine, path, world);
  });
  test::run_engines(engine_with({}), {.micro_batches = 1}, [&](Engine& engine, dist::Communicator& world) {
    load(engine, path, f32);
    save(engine, back, world);
  });
  test::run_engines(engine_with(small), {.micro_batches = 1},
                    [&](Engine& engine, dist::Communicator&) { load(engine, back, again); });
  EXPECT_EQ(first, again);
  EXPECT_EQ(f32.at("head").size(), 2 * first.at("head").size());
}

TEST(UpdateInBackward, GivesTheBitsOfUpdatesAtTheEnd) {
  for (const auto recompute : {model::Recompute::kNone, model::Recompute::kMlp, model::Recompute::kLayer})
    for (const auto experts : {model::Experts::kGrouped, model::Experts::kLoop})
      for (const bool tied : {false, true}) {
        EngineOptions options = engine_with({.masters = false, .states = DType::kBF16});
        options.recompute = recompute;
        options.experts = experts;
        options.model.tied_head = tied;
        options.clip = 0;
        const Trace at_end = train(options, {.micro_batches = 1}, 3);
        options.storage.gradients = false;
        const Trace behind = train(options, {.micro_batches = 1}, 3);
        EXPECT_EQ(behind.kept, at_end.kept);
        EXPECT_EQ(behind.losses, at_end.losses);
        for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(behind.norms[i], at_end.norms[i], 0x1p-22 * at_end.norms[i]);  // another order
      }
}

TEST(UpdateInBackward, OneGradientLivesAtATime) {
  EngineOptions options = engine_with({});
  options.clip = 0;
  const MemoryPlan all = Engine::plan(options);
  options.storage.gradients = false;
  const MemoryPlan one = Engine::plan(options);
  int64_t largest = 0;
  const model::Decoder decoder(options.model, decoder_options(options));
  for (const Parameter* p : decoder.parameters()) largest = std::max(largest, 4 * p->shape.numel());
  EXPECT_LE(one.gradients, largest + 255);
  EXPECT_GT(all.gradients, 2 * one.gradients);
  test::run_engines(options, {.micro_batches = 1}, [&](Engine& engine, dist::Communicator& world) {
    take_step(engine, 0, {.micro_batches = 1}, world);
    EXPECT_EQ(engine.peak().gradients, one.gradients);
    EXPECT_EQ(engine.peak().activations, one.activations);
  });
}

TEST(UpdateInBackward, RefusesWhatNeedsAllGradients) {
  const auto refusal = [](const std::function<void(EngineOptions&)>& change) -> std::string {
    EngineOptions options = engine_with({.gradients = false});
    change(options);
    return test::refusal_of(options);
  };
  EXPECT_EQ(refusal([](EngineOptions&) {}), "");
  EXPECT_THAT(refusal([](EngineOptions& o) {
                o.storage.masters = false;
                o.precision = Precision::kF32;
              }),
              HasSubstr("their own masters"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.clip = 1; }), HasSubstr("optimizer.clip = 0"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.micro_batches = 2; }), HasSubstr("micro-batches"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.sharing.shape = {.dp = 2}; }), HasSubstr("one rank"));
}

// A NaN in the last layer's weights shows in the loss, before anything is updated.
TEST(UpdateInBackward, NothingIsUpdatedAfterALossThatIsNotFinite) {
  test::run_engines(engine_with({.gradients = false}), {.micro_batches = 1}, [&](Engine& engine, dist::Communicator& world) {
    engine.parameters().find("layers.1.moe.router").master.span<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    Kept before, after;
    collect(engine, before);
    EXPECT_FALSE(take_step(engine, 0, {.micro_batches = 1}, world).finite);
    const test::RankBatches batches(test::step_batches(kTokens, 1, 0), 1, 0);
    EXPECT_THAT(engine.find_nonfinite(batches.views(), batches.label_weight()), HasSubstr("layers.1.moe.router"));
    collect(engine, after);
    EXPECT_EQ(before, after);
  });
}

}  // namespace
}  // namespace cistron::train
