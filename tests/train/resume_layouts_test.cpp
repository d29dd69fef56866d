// Runs on several ranks: saved on one layout of the mesh, resumed on another.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cistron/core/error.h"
#include "cistron/dist/threads.h"
#include "cistron/train/trainer.h"
#include "tests/train/metrics_support.h"
#include "tests/train/support.h"

namespace cistron::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

struct Layout {
  int dp = 1, ep = 1;
  bool fsdp = true;
};

std::string name_of(const Layout& layout) {
  return fmt::format("{}x{}{}", layout.dp, layout.ep, layout.fsdp ? "" : "Replicated");
}

class ResumeLayouts : public testing::Test {
 protected:
  ResumeLayouts() { test::write_protein_store(store()); }

  fs::path store() const { return directory_.path() / "store"; }
  fs::path run(const std::string& name) const { return directory_.path() / name; }

  RunConfig config(const Layout& layout) const {
    RunConfig c = test::tiny_run(store());
    c.train.steps = 8;
    c.train.validate_every = 4;
    c.optimizer.lr = 1e-3;
    c.parallel.dp = layout.dp;
    c.parallel.ep = layout.ep;
    c.parallel.fsdp = layout.fsdp;
    c.parallel.timeout_seconds = 60;
    resolve(c, false);
    return c;
  }

  void train(const RunConfig& c, const std::string& name, RunFolder::Mode mode = RunFolder::Mode::kNew) {
    const auto ranks = static_cast<int>(c.parallel.dp * c.parallel.ep);
    dist::run_ranks(
        ranks,
        [&](dist::Communicator& world) {
          ThreadPool pool(1);
          Progress progress({.stream = nullptr});
          Trainer trainer({.config = c, .run = run(name), .mode = mode, .signal = &signal_, .world = &world}, pool, progress);
          trainer.run();
        },
        communicator_options(c));
  }

  // As kill -9 after the checkpoint of step 4 would leave the run.
  void cut_back(const std::string& from, const std::string& to) const {
    fs::copy(run(from), run(to), fs::copy_options::recursive);
    fs::remove_all(run(to) / "checkpoints" / CheckpointFolder::name_of(8));
    std::ofstream(run(to) / "checkpoints" / "latest") << CheckpointFolder::name_of(4) << "\n";
  }

  std::vector<json> metrics(const std::string& name) const { return test::metrics_of(run(name)); }

  test::TemporaryDirectory directory_;
  std::atomic<int> signal_{0};
};

void expect_near(const std::vector<json>& found, const std::vector<json>& wanted, const std::string& what) {
  ASSERT_EQ(found.size(), wanted.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) {
    const char* key = wanted[i].contains("valid_loss") ? "valid_loss" : "loss";
    EXPECT_EQ(found[i]["step"], wanted[i]["step"]) << what;
    const double x = found[i][key], y = wanted[i][key];
    EXPECT_LE(std::abs(x - y), 1e-5 * y) << what << " step " << wanted[i]["step"] << " " << key;
  }
}

TEST_F(ResumeLayouts, SavedOnOneItGoesOnOnAnyOther) {
  const std::vector<Layout> layouts{{1, 1}, {2, 1}, {1, 2}, {2, 2}, {2, 1, false}};
  for (const Layout& layout : layouts) train(config(layout), name_of(layout));
  for (const Layout& from : layouts) {
    expect_near(metrics(name_of(from)), metrics("1x1"), name_of(from));
    for (const Layout& to : layouts) {
      const std::string name = name_of(from) + "To" + name_of(to);
      cut_back(name_of(from), name);
      train(config(to), name, RunFolder::Mode::kResume);
      expect_near(metrics(name), metrics("1x1"), name);
      if (name_of(from) == name_of(to)) {
        EXPECT_EQ(metrics(name), metrics(name_of(from))) << name;
      }
    }
  }
}

TEST_F(ResumeLayouts, EachRankWritesItsShareAndTheFilesHoldEachRowOnce) {
  train(config({3, 1}), "a");
  const fs::path saved = run("a") / "checkpoints" / CheckpointFolder::name_of(8);
  for (const char* name : {"parameters-00000.safetensors", "parameters-00002.safetensors", "optimizer-00001.safetensors"})
    EXPECT_TRUE(fs::exists(saved / name)) << name;
  const Checkpoint checkpoint(saved);
  EXPECT_TRUE(checkpoint.has_optimizer());
  const auto whole_bytes = static_cast<uintmax_t>(4 * test::tiny_model().parameters());
  uintmax_t bytes = 0;
  for (const auto& file : fs::directory_iterator(saved))
    if (file.path().filename().string().starts_with("parameters")) bytes += fs::file_size(file.path());
  EXPECT_LT(bytes, whole_bytes + 3 * 8192);
  EXPECT_GE(bytes, whole_bytes);
}

// A checkpoint a step, so that each is written while the next step runs.
TEST_F(ResumeLayouts, SavedBehindTrainingTheNumbersAndTheCheckpointsAreTheSame) {
  RunConfig c = config({2, 2});
  c.train.checkpoint_every = 1;
  train(c, "at_once");
  c.train.save_behind = true;
  train(c, "behind");
  EXPECT_EQ(metrics("behind"), metrics("at_once"));
  for (int64_t step = 6; step <= 8; ++step) {
    const fs::path name = fs::path("checkpoints") / CheckpointFolder::name_of(step);
    for (const char* file : {"parameters-00000.safetensors", "optimizer-00003.safetensors"})
      EXPECT_EQ(read_text(run("behind") / name / file), read_text(run("at_once") / name / file)) << step << file;
  }
}

TEST_F(ResumeLayouts, ARankStartedInAnotherModeIsRefusedByName) {
  const RunConfig c = config({2, 1});
  dist::run_ranks(2, [&](dist::Communicator& world) {
    using Mode = RunFolder::Mode;
    const auto start = [&](Mode mode, const char* name) { (void)RunFolder(run(name), mode, world); };
    EXPECT_THAT([&] { start(world.rank() == 1 ? Mode::kResume : Mode::kNew, "a"); },
                testing::ThrowsMessage<Error>(HasSubstr("--resume on rank 1, neither on the others")));
    EXPECT_THAT([&] { start(Mode::kNew, world.rank() == 1 ? "b" : "a"); },
                testing::ThrowsMessage<Error>(HasSubstr("another --out")));
    EXPECT_FALSE(fs::exists(run("a")) || fs::exists(run("b")));
  });
}

TEST_F(ResumeLayouts, APartThatIsMissingOrFlippedIsFoundByWhicheverRankReadsIt) {
  train(config({2, 1}), "a");
  const fs::path part = run("a") / "checkpoints" / CheckpointFolder::name_of(8) / "optimizer-00001.safetensors";
  {
    std::fstream stream(part, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-1, std::ios::end);
    stream.put('\x55');
  }
  for (const Layout& layout : {Layout{1, 1}, Layout{2, 1}, Layout{3, 1}}) {
    const std::string name = "resumed" + name_of(layout);
    fs::copy(run("a"), run(name), fs::copy_options::recursive);
    train(config(layout), name, RunFolder::Mode::kResume);  // from step 4
    expect_near(metrics(name), metrics("a"), name);
  }
}

TEST_F(ResumeLayouts, ASignalThatOneRankSawStopsAllAfterTheSameStep) {
  train(config({2, 1}), "whole");
  signal_ = 15;
  train(config({2, 1}), "signalled");
  signal_ = 0;
  train(config({2, 1}), "signalled", RunFolder::Mode::kResume);
  EXPECT_EQ(metrics("signalled"), metrics("whole"));
}

TEST_F(ResumeLayouts, AMeshThatIsNotTheRanksIsRefused) {
  RunConfig c = config({2, 1});
  const auto start = [&](int ranks) { dist::run_ranks(ranks, [&](dist::Communicator& world) { (void)Ranks(world, c, 1); }); };
  EXPECT_NO_THROW(start(2));
  EXPECT_THAT([&] { start(3); }, testing::ThrowsMessage<Error>(HasSubstr("2 x 1 is not the number of ranks, 3")));
  c.parallel.dp = 0;
  EXPECT_NO_THROW(start(3));
  c.parallel.ep = 2;
  EXPECT_THAT([&] { start(3); }, testing::ThrowsMessage<Error>(HasSubstr("ep must divide")));
  c.parallel.ep = 5;
  EXPECT_THAT([&] { start(5); }, testing::ThrowsMessage<Error>(HasSubstr("5 expert-parallel ranks for 4 experts")));
}

TEST_F(ResumeLayouts, ARankWithAnotherConfigurationSeedOrStoreIsRefusedByName) {
  const RunConfig c = config({3, 1});
  const auto start = [&](const std::function<void(RunConfig&)>& change, uint64_t store) {
    dist::run_ranks(3, [&](dist::Communicator& world) {
      RunConfig mine = c;
      if (world.rank() == 1) change(mine);
      (void)Ranks(world, mine, world.rank() == 1 ? store : 1);
    });
  };
  const auto says = [](const char* text) { return testing::ThrowsMessage<Error>(HasSubstr(text)); };
  EXPECT_THAT([&] { start([](RunConfig& o) { o.train.seed = 7; }, 1); },
              says("rank 1 has another seed: 7 on rank 1, 1 on the others"));
  EXPECT_THAT([&] { start([](RunConfig& o) { o.optimizer.lr = 0.5; }, 1); },
              says("rank 1 has another configuration: optimizer.lr = 0.5 on rank 1"));
  EXPECT_THAT([&] { start([](RunConfig&) {}, 2); }, says("rank 1 has another store"));
}

}  // namespace
}  // namespace cistron::train
