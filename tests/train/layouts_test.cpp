#include "cistron/train/layouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/support.h"

namespace cistron::train {
namespace {

RunConfig config() {
  RunConfig c;
  c.model = test::tiny_model();
  c.model.layers = 4;
  c.model.hidden = 256;
  c.model.head_dim = 64;
  c.model.intermediate = 256;
  c.recipe = "fp32";
  c.train.steps = 1;
  c.train.batch_tokens = 4096;
  c.train.micro_batch_tokens = 2048;
  resolve(c, false);
  return c;
}

TEST(Layouts, AreThoseThatTheExpertsAllow) {
  std::vector<std::pair<int, int>> found;
  for (const auto& shape : legal_layouts(12, 4)) found.emplace_back(shape.dp, shape.ep);
  EXPECT_THAT(found, testing::ElementsAre(std::pair(12, 1), std::pair(6, 2), std::pair(4, 3), std::pair(3, 4)));
}

TEST(Layouts, OneRankIsThePlanOfTheEngine) {
  const LayoutPlan plan = plan_layout(config(), {1, 1});
  EXPECT_EQ(plan.memory.total(), Engine::plan(engine_options(config())).total());
  EXPECT_EQ(plan.parameters, config().model.parameters());
  EXPECT_EQ(plan.memory.gathered, 0);
}

TEST(Layouts, MemoryFallsAsShardingSays) {
  const MemoryPlan one = plan_layout(config(), {1, 1}).memory;
  for (const int ranks : {2, 4, 8}) {
    const LayoutPlan many = plan_layout(config(), {ranks, 1});
    for (const auto& [now, before] :
         {std::pair(many.memory.parameters, one.parameters), std::pair(many.memory.gradients, one.gradients),
          std::pair(many.memory.optimizer, one.optimizer)}) {
      EXPECT_GE(now * ranks, before);
      EXPECT_LE(now * ranks, before * 11 / 10) << ranks;  // shards are cut between blocks of rows
    }
    EXPECT_GT(many.memory.gathered, 0);
    EXPECT_LT(many.memory.activations, one.activations);
  }
  RunConfig replicated = config();
  replicated.parallel.fsdp = false;
  EXPECT_EQ(plan_layout(replicated, {4, 1}).memory.parameters, one.parameters);
}

TEST(Layouts, WhatWouldFitFits) {
  const MemoryPlan now = plan_layout(config(), {2, 1}).memory;
  EXPECT_EQ(what_would_fit(config(), {2, 1}, now.total() * 95 / 100), "--set train.recompute=mlp");
  EXPECT_THAT(what_would_fit(config(), {2, 1}, now.total() / 3), testing::HasSubstr("--gpus"));
  EXPECT_EQ(what_would_fit(config(), {2, 1}, 1000), "");
}

}  // namespace
}  // namespace cistron::train
