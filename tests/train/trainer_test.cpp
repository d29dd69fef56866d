// Runs of a tiny model on random proteins, whole and interrupted.
#include "cistron/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "cistron/core/error.h"
#include "cistron/data/store.h"
#include "cistron/dist/single.h"
#include "tests/train/metrics_support.h"
#include "tests/train/support.h"

namespace cistron::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() { test::write_protein_store(store()); }

  fs::path store() const { return directory_.path() / "store"; }
  fs::path run(const std::string& name) const { return directory_.path() / name; }

  RunConfig config() const {
    RunConfig c = test::tiny_run(store());
    c.train.steps = 12;
    c.train.validate_every = 5;
    c.optimizer.lr = 1e-2;
    c.optimizer.warmup = 3;
    resolve(c, false);
    return c;
  }

  TrainResult train(const RunConfig& c, const std::string& name, RunFolder::Mode mode = RunFolder::Mode::kNew, int threads = 2) {
    ThreadPool pool(threads);
    Progress progress({.quiet = true});
    Trainer trainer({.config = c, .run = run(name), .mode = mode, .signal = &signal_}, pool, progress);
    return trainer.run();
  }

  std::vector<json> metrics(const std::string& name) const { return test::metrics_of(run(name)); }

  test::TemporaryDirectory directory_;
  std::atomic<int> signal_{0};
};

TEST_F(TrainerTest, LogsEveryStepAndValidates) {
  const TrainResult result = train(config(), "a");
  EXPECT_FALSE(result.interrupted);
  EXPECT_EQ(result.step, 12);
  const auto lines = metrics("a");
  ASSERT_EQ(lines.size(), 12U + 3U);  // validated after 5, 10, 12
  int64_t step = 0, validations = 0;
  for (const auto& line : lines) {
    if (line.contains("valid_loss")) {
      ++validations;
      EXPECT_EQ(line["step"], step);
      for (const char* key : {"valid_perplexity", "valid_bits_per_token", "valid_tokens"}) EXPECT_TRUE(line.contains(key)) << key;
      EXPECT_NEAR(std::log(line["valid_perplexity"].get<double>()), line["valid_loss"].get<double>(), 1e-12);
      continue;
    }
    EXPECT_EQ(line["step"], ++step);
    EXPECT_EQ(line["tokens"], step * 192);
    for (const char* key : {"loss", "aux_loss", "z_loss", "lr", "grad_norm", "router_entropy", "expert_load_max_over_mean"})
      EXPECT_TRUE(line[key].is_number()) << key;
  }
  EXPECT_EQ(validations, 3);
  EXPECT_LT(lines.back()["valid_loss"], 3.4);
  EXPECT_TRUE(fs::exists(run("a") / "config.toml"));
  EXPECT_EQ(CheckpointFolder(run("a") / "checkpoints").find([](const auto&) {})->info().state.step, 12);
}

TEST_F(TrainerTest, ResumedAnywhereItGivesTheSameNumbers) {
  train(config(), "whole");
  const auto expected = metrics("whole");
  for (const int64_t stop : {4, 8}) {
    const std::string name = fmt::format("stopped{}", stop);
    RunConfig part = config();
    // A run of the same schedule, cut at `stop` as by kill -9 after its checkpoint.
    part.train.checkpoint_every = 4;
    train(part, name);
    for (int64_t step = 1; step <= 12; ++step)
      if (step > stop) fs::remove_all(run(name) / "checkpoints" / CheckpointFolder::name_of(step));
    std::ofstream(run(name) / "checkpoints" / "latest") << CheckpointFolder::name_of(stop) << "\n";
    std::ofstream(run(name) / "metrics.jsonl", std::ios::app) << "{\"step\": 12, \"lo";  // a torn line
    train(part, name, RunFolder::Mode::kResume, /*threads=*/1);
    EXPECT_EQ(metrics(name), expected) << "stopped after " << stop;
  }
}

TEST_F(TrainerTest, BrokenLatestIsPassedOverAndTheNumbersAreTheSame) {
  train(config(), "whole");
  train(config(), "broken");
  fs::resize_file(run("broken") / "checkpoints" / "step-00000012" / "optimizer.safetensors", 100);
  train(config(), "broken", RunFolder::Mode::kResume);
  EXPECT_EQ(metrics("broken"), metrics("whole"));
  EXPECT_TRUE(fs::exists(run("broken") / "checkpoints/step-00000012.broken")) << "what may be of use is never written over";
}

TEST_F(TrainerTest, ASignalSavesAndResumingGivesTheSameNumbers) {
  train(config(), "whole");
  RunConfig c = config();
  signal_ = 15;  // before the first step
  const TrainResult stopped = train(c, "signalled");
  EXPECT_TRUE(stopped.interrupted);
  EXPECT_EQ(stopped.step, 0);
  signal_ = 0;
  train(c, "signalled", RunFolder::Mode::kResume);
  EXPECT_EQ(metrics("signalled"), metrics("whole"));
}

TEST_F(TrainerTest, AnExistingRunIsRefusedUnlessForced) {
  train(config(), "a");
  EXPECT_THAT([&] { train(config(), "a"); }, testing::ThrowsMessage<Error>(HasSubstr("--resume")));
  EXPECT_EQ(metrics("a").size(), 15U);
  train(config(), "a", RunFolder::Mode::kForce);
  EXPECT_EQ(metrics("a").size(), 15U);
}

TEST_F(TrainerTest, ARunInUseIsRefusedInEveryMode) {
  using Mode = RunFolder::Mode;
  ThreadPool pool(1);
  Progress progress({.quiet = true});
  {
    const Trainer holder({.config = config(), .run = run("a")}, pool, progress);
    for (const Mode mode : {Mode::kResume, Mode::kForce})
      EXPECT_THAT([&] { train(config(), "a", mode); }, testing::ThrowsMessage<Error>(HasSubstr("another process")));
  }
  EXPECT_EQ(train(config(), "a", Mode::kResume).step, 12);
}

TEST_F(TrainerTest, ARunThatIsRemovedRenamedOrReplacedStopsAndTouchesNothing) {
  const auto swap = [&](const std::string& name, const auto& act) {
    ThreadPool pool(1);
    Progress progress({.quiet = true});
    Trainer trainer({.config = config(), .run = run(name)}, pool, progress);
    act();
    EXPECT_THAT([&] { trainer.run(); }, testing::ThrowsMessage<Error>(HasSubstr("removed, renamed or replaced"))) << name;
  };
  swap("removed", [&] { fs::remove_all(run("removed")); });
  EXPECT_FALSE(fs::exists(run("removed")));
  swap("renamed", [&] { fs::rename(run("renamed"), run("elsewhere")); });
  EXPECT_FALSE(fs::exists(run("renamed")));
  EXPECT_TRUE(fs::is_empty(run("elsewhere") / "metrics.jsonl"));
  std::vector<json> of_the_new_one;
  swap("replaced", [&] {
    fs::remove_all(run("replaced"));
    train(config(), "replaced");
    of_the_new_one = metrics("replaced");
  });
  EXPECT_EQ(metrics("replaced"), of_the_new_one);
  EXPECT_TRUE(train(config(), "replaced", RunFolder::Mode::kResume).was_finished);
}

TEST_F(TrainerTest, ASaveNeverMakesTheFolderThatItWasGiven) {
  ThreadPool pool(1);
  Progress progress({.quiet = true});
  Trainer trainer({.config = config(), .run = run("a")}, pool, progress);
  fs::remove(run("a") / "checkpoints");
  EXPECT_THAT([&] { trainer.run(); }, testing::ThrowsMessage<Error>(HasSubstr("folder has gone")));
  EXPECT_FALSE(fs::exists(run("a") / "checkpoints"));
}

TEST_F(TrainerTest, AForcedStartThatWasKilledIsNeverTheOldRun) {
  train(config(), "new");
  for (const bool cleared_all : {false, true}) {
    const std::string name = cleared_all ? "late" : "early";
    train(config(), name);
    fs::rename(run(name) / "checkpoints", run(name) / ".checkpoints-being-removed");
    if (cleared_all) fs::remove(run(name) / "metrics.jsonl");
    EXPECT_EQ(train(config(), name, cleared_all ? RunFolder::Mode::kForce : RunFolder::Mode::kResume).step, 12);
    EXPECT_EQ(metrics(name), metrics("new"));
    EXPECT_FALSE(fs::exists(run(name) / ".checkpoints-being-removed"));
    const auto is_log = [](const auto& entry) { return entry.path().filename().string().starts_with("events."); };
    EXPECT_EQ(std::ranges::count_if(fs::directory_iterator(run(name)), is_log), 1) << "the old run's events are gone";
  }
}

TEST_F(TrainerTest, WhatWasBeingReplacedStaysWhileItIsTheOnlyCopy) {
  train(config(), "a");
  const fs::path last = run("a") / "checkpoints/step-00000012";
  fs::rename(last, last.string() + ".replaced");
  CheckpointFolder(last.parent_path()).remove_partial();
  EXPECT_TRUE(fs::exists(last.string() + ".replaced"));
  fs::create_directory(last);
  CheckpointFolder(last.parent_path()).remove_partial();
  EXPECT_FALSE(fs::exists(last.string() + ".replaced"));
}

TEST_F(TrainerTest, WhatCannotBeListedOrReadIsNotTakenForAbsent) {
  train(config(), "a");
  const auto before = metrics("a");
  fs::rename(run("a") / "metrics.jsonl", run("a") / "kept");
  fs::create_directory(run("a") / "metrics.jsonl");  // fails to be read, whoever asks
  EXPECT_THROW(train(config(), "a", RunFolder::Mode::kResume), Error);
  fs::remove(run("a") / "metrics.jsonl");
  fs::rename(run("a") / "kept", run("a") / "metrics.jsonl");
  EXPECT_EQ(metrics("a"), before);
}

TEST_F(TrainerTest, WhatARefusedOrKilledStartLeftIsNoObstacle) {
  fs::create_directories(run("empty") / "checkpoints");
  std::ofstream(run("empty") / RunLock::kName);
  EXPECT_EQ(train(config(), "empty").step, 12);
  fs::create_directories(run("foreign"));
  std::ofstream(run("foreign") / "thesis.txt");
  EXPECT_THROW(train(config(), "foreign"), Error);
  const fs::path partial = run("killed") / "checkpoints" / "step-00000004.partial";
  fs::create_directories(partial);
  std::ofstream(partial / "parameters.safetensors") << "half";
  EXPECT_EQ(train(config(), "killed", RunFolder::Mode::kResume).step, 12);
  EXPECT_FALSE(fs::exists(partial));
}

TEST_F(TrainerTest, ResumingNothingStartsAfresh) { EXPECT_EQ(train(config(), "new", RunFolder::Mode::kResume).step, 12); }

TEST_F(TrainerTest, ResumingADoneRunDoesNothing) {
  const TrainResult first = train(config(), "a");
  const auto written = fs::last_write_time(run("a") / "config.toml");
  const TrainResult again = train(config(), "a", RunFolder::Mode::kResume);
  EXPECT_FALSE(first.was_finished);
  EXPECT_TRUE(again.was_finished);
  EXPECT_EQ(again.step, 12);
  EXPECT_EQ(again.loss, first.loss);
  EXPECT_EQ(again.validation.value().loss, first.validation.value().loss);
  EXPECT_EQ(fs::last_write_time(run("a") / "config.toml"), written);
  EXPECT_EQ(metrics("a").size(), 15U);
}

TEST_F(TrainerTest, WhatCannotChangeIsRefusedOnResume) {
  train(config(), "a");
  RunConfig other = config();
  other.train.seed = 2;
  EXPECT_THAT([&] { train(other, "a", RunFolder::Mode::kResume); },
              testing::ThrowsMessage<Error>(HasSubstr("train.seed: 1 -> 2")));
  other = config();
  other.model.layers = 3;
  EXPECT_THAT([&] { train(other, "a", RunFolder::Mode::kResume); }, testing::ThrowsMessage<Error>(HasSubstr("model.layers")));
}

TEST_F(TrainerTest, ALongerRunGoesOn) {
  train(config(), "a");
  RunConfig longer = config();
  longer.train.steps = 14;
  EXPECT_EQ(train(longer, "a", RunFolder::Mode::kResume).step, 14);
}

TEST_F(TrainerTest, ABrokenStoreLeavesNoRun) {
  RunConfig c = config();
  c.data.store = directory_.path().string();
  EXPECT_THROW(train(c, "none"), Error);
  EXPECT_FALSE(fs::exists(run("none")));
}

TEST_F(TrainerTest, AVocabularyThatIsTooSmallIsRefused) {
  RunConfig c = config();
  c.model.vocabulary = 30;
  EXPECT_THAT([&] { train(c, "none"); }, testing::ThrowsMessage<Error>(HasSubstr("model.vocabulary = 33")));
}

TEST_F(TrainerTest, ANumberThatIsNotFiniteStopsAndNamesStepAndModule) {
  ThreadPool pool(1);
  Progress progress({.quiet = true});
  Trainer trainer({.config = config(), .run = run("nan")}, pool, progress);
  trainer.engine().parameters().find("layers.1.moe.router").master.span<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT([&] { trainer.run(); },
              testing::ThrowsMessage<Error>(testing::AllOf(HasSubstr("step 1"), HasSubstr("layers.1.moe.router"))));
}

TEST_F(TrainerTest, AHeldOutLossThatIsNotFiniteIsSaid) {
  RunConfig c = config();
  c.train.steps = 1;
  c.optimizer.warmup = 0;
  c.optimizer.schedule = "constant";
  c.optimizer.lr = 1e15;  // queries times keys overflow
  char* text = nullptr;
  size_t size = 0;
  std::FILE* shown = open_memstream(&text, &size);
  {
    ThreadPool pool(1);
    Progress progress({.stream = shown, .quiet = true});
    Trainer({.config = c, .run = run("wild")}, pool, progress).run();
  }
  std::fclose(shown);
  EXPECT_THAT(text, HasSubstr("the held-out loss of step 1 is not finite"));
  std::free(text);
  EXPECT_TRUE(metrics("wild").back()["valid_loss"].is_null());
}

TEST_F(TrainerTest, ADiskThatIsTooSmallLeavesTheOldRunAlone) {
  train(config(), "a");
  const auto before = metrics("a");
  const auto alone = dist::single();
  RunFolder folder(run("a"), RunFolder::Mode::kForce, *alone);
  EXPECT_THAT([&] { folder.prepare(config(), INT64_MAX / 2 + INT64_MAX / 4); },
              testing::ThrowsMessage<Error>(HasSubstr("the disk has")));
  EXPECT_EQ(metrics("a"), before);
  EXPECT_TRUE(fs::exists(run("a") / "checkpoints/latest"));
  folder.prepare(config(), 0);
  EXPECT_FALSE(fs::exists(run("a") / "metrics.jsonl"));
  EXPECT_TRUE(fs::is_empty(run("a") / "checkpoints"));
}

TEST_F(TrainerTest, WhatIsNoRunIsLeftAlone) {
  train(config(), "a");
  const fs::path checkpoint = run("a") / "checkpoints/step-00000012";
  for (const auto mode : {RunFolder::Mode::kResume, RunFolder::Mode::kForce})
    for (const char* name : {"store", "a/checkpoints/step-00000012", "a/checkpoints"})
      EXPECT_THAT([&] { train(config(), name, mode); }, testing::ThrowsMessage<Error>(HasSubstr("not a run"))) << name;
  EXPECT_NO_THROW(Checkpoint{checkpoint});
}

TEST_F(TrainerTest, ACheckpointThatWasBeingReplacedComesBack) {
  train(config(), "a");
  const fs::path last = run("a") / "checkpoints/step-00000012";
  fs::rename(last, last.string() + ".replaced");  // killed between two renames
  EXPECT_TRUE(train(config(), "a", RunFolder::Mode::kResume).was_finished);
  EXPECT_TRUE(fs::exists(last));
}

TEST_F(TrainerTest, TheSeedDecides) {
  train(config(), "a");
  RunConfig other = config();
  other.train.seed = 2;
  train(other, "b");
  EXPECT_NE(metrics("a"), metrics("b"));
}

}  // namespace
}  // namespace cistron::train
