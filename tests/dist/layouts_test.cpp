// "The loss does not depend on the layout": 20 steps of a small model on every mesh against one rank, over threads and, under
// mpirun, over processes.
#include <gmock/gmock.h>

#include "cistron/cpu/ref/router.h"
#include "cistron/data/split.h"
#include "cistron/dist/single.h"
#include "cistron/dist/threads.h"
#include "tests/dist/support.h"
#include "tests/ops/support.h"
#include "tests/train/support.h"

namespace cistron::test {
namespace {

using dist::Communicator;
using dist::MeshShape;
using train::Engine;
using train::EngineOptions;

constexpr double kRelative = 1e-5;
constexpr int64_t kSteps = 20, kLongest = 40;

/// A training run, apart from its layout.
struct Recipe {
  std::string name;
  Precision precision = Precision::kF32;
  model::Recompute recompute = model::Recompute::kNone;
  bool fsdp = true;
  int64_t tokens = 71;  // of a micro-batch: some four sequences, so that ranks differ much, and some have none
  int64_t micro_batches = 2;
  double headroom = 1.25;
  int64_t experts = 5, top_k = 2;
  model::Experts kernel = model::Experts::kGrouped;
  bool reshard = true;
  bool wide = false;    // widths that mxfp8 takes
  bool skewed = false;  // choices of experts as given: few experts at a time, in turns
};

std::vector<Recipe> recipes() {
  return {{.name = "Natural"},
          {.name = "RecomputeReplicated", .recompute = model::Recompute::kLayer, .fsdp = false, .micro_batches = 1},
          {.name = "Skewed", .recompute = model::Recompute::kMlp, .skewed = true},
          {.name = "SkewedOverflow", .tokens = 180, .micro_batches = 1, .headroom = 1.0, .skewed = true},
          {.name = "SkewedOverflowKept", .tokens = 180, .micro_batches = 1, .headroom = 1.0, .reshard = false, .skewed = true}};
}

EngineOptions options_of(const Recipe& recipe, const MeshShape& shape, int rank) {
  EngineOptions options = train::test::tiny_engine(recipe.precision);
  options.model.experts = recipe.experts;
  options.model.top_k = recipe.top_k;
  options.experts = recipe.kernel;
  if (recipe.wide) {
    options.model.hidden = options.model.intermediate = 128;
    options.model.heads = options.model.kv_heads = 4;
    options.model.head_dim = 32;
  }
  options.model.init_std = 0.1;
  options.recompute = recipe.recompute;
  options.micro_batch_tokens = data::most_tokens_of_rank(recipe.tokens, kLongest, shape.size());
  options.eval_batch_tokens = options.micro_batch_tokens;
  options.micro_batches = recipe.micro_batches;
  options.weight_decay = 0.0;  // so that only a gradient changes a parameter
  options.headroom = recipe.headroom;
  options.sharing = {.shape = shape, .rank = rank, .fsdp = recipe.fsdp, .reshard_after_forward = recipe.reshard};
  return options;
}

/// A micro-batch of the whole run; `choices` [layers, T, k] where they are given.
struct Global {
  data::PackedBatch batch;
  std::vector<int32_t> choices;
};

/// Two of the experts have all tokens of a layer in a step, so most ranks have none.
std::vector<int32_t> skewed_choices(const model::ModelConfig& model, int64_t tokens, int64_t step) {
  std::vector<int32_t> choices;
  for (int64_t layer = 0; layer < model.layers; ++layer)
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t j = 0; j < model.top_k; ++j) {
        const int64_t odd = j == 0 && t % 7 == 0 ? 1 : 0;
        choices.push_back(static_cast<int32_t>((step + layer + j + 2 * odd) % model.experts));
      }
  return choices;
}

using Recorded = std::vector<std::vector<Global>>;  // by step, micro-batch

Recorded batches_of(const Recipe& recipe) {
  const model::ModelConfig model = options_of(recipe, {}, 0).model;
  Recorded all(kSteps);
  for (int64_t step = 0; step < kSteps; ++step)
    for (int64_t j = 0; j < recipe.micro_batches; ++j) {
      Global global{.batch = train::test::random_batch(recipe.tokens, static_cast<uint64_t>(100 * step + j)), .choices = {}};
      if (recipe.skewed) global.choices = skewed_choices(model, recipe.tokens, step);
      all[static_cast<size_t>(step)].push_back(std::move(global));
    }
  return all;
}

/// What one rank gets of a step's micro-batches.
class Share {
 public:
  Share(const std::vector<Global>& globals, const model::ModelConfig& model, int ranks, int rank) {
    for (const Global& global : globals) {
      weight_ += static_cast<double>(global.batch.label_count);
      parts_.push_back(data::part_of_rank(global.batch, ranks, rank));
      own_weight_ += static_cast<double>(parts_.back().label_count);
      choices_.push_back(choices_of_rank(global, model, ranks, rank));
    }
    for (size_t i = 0; i < parts_.size(); ++i) {
      views_.push_back(nn::view_of(parts_[i]));
      if (globals[i].choices.empty()) continue;
      views_.back().choices = Tensor::view(std::span(choices_[i])).reshape({model.layers * parts_[i].num_tokens(), model.top_k});
    }
  }
  [[nodiscard]] std::span<const nn::Batch> views() const { return views_; }
  [[nodiscard]] double weight() const { return weight_; }
  [[nodiscard]] double own_weight() const { return own_weight_; }

 private:
  static std::vector<int32_t> choices_of_rank(const Global& global, const model::ModelConfig& model, int ranks, int rank) {
    std::vector<int32_t> mine;
    if (global.choices.empty()) return mine;
    const auto& cu = global.batch.cu_seqlens;
    const std::vector<int> owner = data::assign_sequences(cu, ranks);
    for (int64_t layer = 0; layer < model.layers; ++layer) {
      const auto first = global.choices.begin() + layer * global.batch.num_tokens() * model.top_k;
      for (size_t s = 0; s < owner.size(); ++s)
        if (owner[s] == rank) mine.insert(mine.end(), first + cu[s] * model.top_k, first + cu[s + 1] * model.top_k);
    }
    return mine;
  }

  std::vector<data::PackedBatch> parts_;
  std::vector<std::vector<int32_t>> choices_;
  std::vector<nn::Batch> views_;
  double weight_ = 0.0, own_weight_ = 0.0;
};

struct Trace {
  std::vector<double> losses, norms, aux;
  double held_out = 0.0;
  std::vector<float> start, end;  // this rank's own rows of all parameters
  double headroom = 0.0;
};

std::vector<float> own_rows(const Engine& engine) {
  std::vector<float> all;
  for (const auto& entry : engine.parameters().entries()) {
    const auto values = entry.owned(entry.master).span<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

enum class Mistake { kNone, kWeight, kLocalWeight };

Trace train_on(const Recipe& recipe, const Recorded& data, dist::Mesh* mesh, Mistake mistake = Mistake::kNone,
               int64_t steps = kSteps) {
  const MeshShape shape = mesh == nullptr ? MeshShape{} : mesh->shape();
  const int rank = mesh == nullptr ? 0 : mesh->world().rank();
  const EngineOptions options = options_of(recipe, shape, rank);
  Engine engine(options, Engine::plan(options), nullptr, mesh);
  engine.initialise(3);
  Trace trace{.start = own_rows(engine), .end = {}};
  for (int64_t step = 0; step < steps; ++step) {
    const Share share(data[static_cast<size_t>(step)], options.model, shape.size(), rank);
    double weight = mistake == Mistake::kLocalWeight ? share.own_weight() * shape.size() : share.weight();
    if (mistake == Mistake::kWeight) weight *= 1.001;
    const auto result = engine.step(share.views(), weight, 1e-3);
    trace.losses.push_back(result.loss);
    trace.norms.push_back(result.grad_norm);
    trace.aux.push_back(result.router.aux_loss + result.router.z_loss + result.router.load_max_over_mean);
  }
  const Share held_out({{train::test::random_batch(recipe.tokens, 9999), {}}}, options.model, shape.size(), rank);
  const auto evaluation = engine.evaluate(held_out.views()[0]);
  trace.held_out = evaluation.nll / static_cast<double>(evaluation.tokens);
  trace.end = own_rows(engine);
  trace.headroom = engine.headroom();
  EngineOptions planned = options;
  planned.headroom = trace.headroom;
  EXPECT_EQ(engine.peak().gathered, Engine::plan(planned).gathered);  // steps that were begun anew left nothing behind
  return trace;
}

testing::AssertionResult is_near(const std::vector<double>& got, const std::vector<double>& want, double relative) {
  for (size_t i = 0; i < want.size(); ++i)
    if (!(std::abs(got[i] - want[i]) <= relative * std::abs(want[i])))
      return testing::AssertionFailure() << "step " << i << ": " << got[i] << ", on one rank " << want[i];
  return testing::AssertionSuccess();
}

double share_of_changed(const Trace& trace) {
  if (trace.start.empty()) return 1.0;
  size_t changed = 0;
  for (size_t i = 0; i < trace.start.size(); ++i) changed += trace.start[i] != trace.end[i] ? 1 : 0;
  return static_cast<double>(changed) / static_cast<double>(trace.start.size());
}

/// Worlds for every layout of up to six ranks.
std::vector<World> layout_worlds() {
  if (mpi_world()) return worlds();
  std::vector<World> result;
  for (const int ranks : {1, 2, 4, 6})
    result.push_back({"threads" + std::to_string(ranks),
                      [ranks](const auto& body) { dist::run_ranks(ranks, body, {std::chrono::seconds(60)}); }});
  return result;
}

class Layouts : public OnEveryWorld {
 protected:
  template <class F>
  void run_meshes(F&& f, int64_t experts = 5) {
    run([&](Communicator& world) {
      for (int ep = 1; ep <= world.size(); ++ep) {
        if (world.size() % ep != 0 || ep > experts) continue;
        dist::Mesh mesh(world, {world.size() / ep, ep});
        SCOPED_TRACE(dist::describe(mesh.shape(), experts));
        f(mesh);
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Dist, Layouts, testing::ValuesIn(layout_worlds()), world_name);

void check_layout(const Recipe& recipe, const Recorded& data, const Trace& one, dist::Mesh& mesh) {
  const Trace got = train_on(recipe, data, &mesh);
  EXPECT_TRUE(is_near(got.losses, one.losses, kRelative));
  EXPECT_TRUE(is_near(got.aux, one.aux, kRelative));
  EXPECT_TRUE(is_near({got.norms[0]}, {one.norms[0]}, kRelative));
  EXPECT_NEAR(got.held_out, one.held_out, kRelative * one.held_out);
  EXPECT_GT(share_of_changed(got), 0.9);
  if (recipe.headroom == 1.0 && mesh.shape().ep > 1) {
    EXPECT_GT(got.headroom, 1.0) << "nothing overflowed";
  }
  if (recipe.name != "Natural" && recipe.name != "Skewed") return;
  const Trace again = train_on(recipe, data, &mesh);
  EXPECT_EQ(got.losses, again.losses);
  EXPECT_EQ(got.norms, again.norms);
  EXPECT_EQ(got.end, again.end);
}

TEST_P(Layouts, TrainAsOneRankDoes) {
  for (const Recipe& r : recipes()) {
    SCOPED_TRACE(r.name);
    const Recorded data = batches_of(r);
    const Trace one = train_on(r, data, nullptr);
    ASSERT_EQ(one.losses.size(), static_cast<size_t>(kSteps));
    EXPECT_LT(one.losses.back(), one.losses.front());
    run_meshes([&](dist::Mesh& mesh) { check_layout(r, data, one, mesh); });
  }
}

// What the comparison must notice: gradients that are too small by a thousandth, a loss normalised by each rank's own labels,
// and statistics (here: choices) of other tokens.
TEST_P(Layouts, WrongOnesAreNoticed) {
  const Recipe natural = recipes()[0];
  const Recorded data = batches_of(natural);
  const Trace one = train_on(natural, data, nullptr, Mistake::kNone, 2);
  run_meshes([&](dist::Mesh& mesh) {
    const Trace scaled = train_on(natural, data, &mesh, Mistake::kWeight, 2);
    EXPECT_FALSE(is_near({scaled.norms[0]}, {one.norms[0]}, kRelative));
    if (mesh.world().size() == 1) return;
    const Trace local = train_on(natural, data, &mesh, Mistake::kLocalWeight, 2);
    EXPECT_FALSE(is_near(local.losses, one.losses, kRelative) && is_near(local.norms, one.norms, kRelative));
  });
}

/// Sizes that fit nothing.
Recipe random_recipe(uint64_t seed) {
  const Rng rng(seed, 1);
  const auto from = [&](uint64_t i, int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng.below(i, static_cast<uint64_t>(high - low + 1)));
  };
  Recipe recipe{.name = fmt::format("random {}", seed)};
  recipe.experts = from(0, 1, 9);
  recipe.top_k = from(1, 1, recipe.experts);
  recipe.tokens = from(2, 0, 2) == 0 ? from(3, 2, 6) : from(3, 7, 150);
  recipe.micro_batches = from(4, 1, 5);
  recipe.recompute = static_cast<model::Recompute>(from(5, 0, 2));
  recipe.fsdp = from(6, 0, 1) == 1;
  recipe.kernel = static_cast<model::Experts>(from(7, 0, 1));
  recipe.headroom = 1.0 + 0.25 * static_cast<double>(from(8, 0, 3));
  return recipe;
}

TEST_P(Layouts, OfAnySizesTrainAsOneRankDoes) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const Recipe recipe = random_recipe(seed);
    SCOPED_TRACE(fmt::format("{}: {} of {} experts, {} tokens, {} micro-batches", recipe.name, recipe.top_k, recipe.experts,
                             recipe.tokens, recipe.micro_batches));
    const Recorded data = batches_of(recipe);
    const Trace one = train_on(recipe, data, nullptr, Mistake::kNone, 4);
    run_meshes(
        [&](dist::Mesh& mesh) {
          const Trace got = train_on(recipe, data, &mesh, Mistake::kNone, 4);
          EXPECT_TRUE(is_near(got.losses, one.losses, kRelative));
          EXPECT_TRUE(is_near(got.aux, one.aux, kRelative));
        },
        recipe.experts);
  }
}

/// The experts that one rank's router chooses, written into the batches. By the f32 logits that it reports.
void record(const Recipe& recipe, Recorded& data) {
  const EngineOptions options = options_of(recipe, {}, 0);
  Engine engine(options, Engine::plan(options), nullptr, nullptr);
  engine.initialise(3);
  for (auto& globals : data) {
    std::vector<int32_t> seen;
    engine.context().observe = [&](std::string_view module, const Tensor& value) {
      if (!module.ends_with(".moe.router")) return;
      const auto experts = cpu::ref::top_k(cpu::ref::router_probs(to_matrix(value)), options.model.top_k);
      seen.insert(seen.end(), experts.data.begin(), experts.data.end());
    };
    const Share share(globals, options.model, 1, 0);
    engine.step(share.views(), share.weight(), 1e-3);
    engine.context().observe = nullptr;
    const auto each = options.model.layers * recipe.tokens * options.model.top_k;
    for (size_t j = 0; j < globals.size(); ++j)
      globals[j].choices.assign(seen.begin() + static_cast<int64_t>(j) * each, seen.begin() + static_cast<int64_t>(j + 1) * each);
  }
}

// In bf16 and mxfp8 a layout may be as far from fp32 as one rank is, twice; the choices are those of one rank.
class LowPrecisionLayouts : public Layouts {
 protected:
  void check(const Recipe& low);
};

void LowPrecisionLayouts::check(const Recipe& low) {
  SCOPED_TRACE(low.name);
  Recipe high = low;
  high.precision = Precision::kF32;
  Recorded data = batches_of(low);
  record(low, data);
  const Trace exact = train_on(high, data, nullptr), one = train_on(low, data, nullptr);
  double error = 0;
  for (size_t i = 0; i < exact.losses.size(); ++i) error = std::max(error, std::abs(one.losses[i] - exact.losses[i]));
  const auto within_bound = [&](const Trace& got) {
    for (size_t i = 0; i < exact.losses.size(); ++i)
      if (!(std::abs(got.losses[i] - exact.losses[i]) <= 2 * error)) return false;
    return true;
  };
  ASSERT_GT(error, 0);
  run_meshes([&](dist::Mesh& mesh) {
    const Trace got = train_on(low, data, &mesh), again = train_on(low, data, &mesh);
    EXPECT_TRUE(within_bound(got)) << testing::PrintToString(got.losses) << testing::PrintToString(one.losses);
    EXPECT_EQ(got.losses, again.losses);
    EXPECT_EQ(got.end, again.end);
    if (mesh.world().size() > 1) {
      EXPECT_FALSE(within_bound(train_on(low, data, &mesh, Mistake::kLocalWeight)));
    }
  });
}

TEST_P(LowPrecisionLayouts, InBf16ErrAsOneRankDoes) {
  check({.name = "bf16", .precision = Precision::kBF16, .micro_batches = 1});
}
TEST_P(LowPrecisionLayouts, InMxfp8ErrAsOneRankDoes) {
  check({.name = "mxfp8/128", .precision = Precision::kMxfp8, .micro_batches = 1, .wide = true});
  check({.name = "mxfp8/32", .precision = Precision::kMxfp8Group32, .fsdp = false, .micro_batches = 1, .wide = true});
}
INSTANTIATE_TEST_SUITE_P(Dist, LowPrecisionLayouts, testing::ValuesIn(layout_worlds()), world_name);

}  // namespace
}  // namespace cistron::test
