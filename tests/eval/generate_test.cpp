#include "cistron/eval/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cistron/core/error.h"
#include "cistron/cpu/fast/onednn.h"
#include "cistron/eval/score.h"
#include "tests/eval/tiny_model.h"

namespace cistron::eval {
namespace {

model::ModelConfig writing_model() {
  auto config = tiny_model();
  config.context = 40;
  return config;
}

constexpr int32_t kEnd = 2;
constexpr uint64_t kWeights = 4;

std::unique_ptr<CachedModel> make_model(int64_t slots, ThreadPool* pool = nullptr, int64_t capacity = 40,
                                        Precision precision = Precision::kF32) {
  auto model = std::make_unique<CachedModel>(
      CachedModelOptions{
          .model = writing_model(), .precision = precision, .slots = slots, .capacity = capacity, .prefill_tokens = 64},
      pool);
  Context ctx;
  model->parameters().initialise(ctx, kWeights);
  model->refresh_working();
  return model;
}

std::vector<Prompt> random_prompts() {
  std::vector<Prompt> prompts;
  for (const int64_t length : {1, 5, 30, 12, 1, 39, 20, 2}) {
    prompts.push_back({std::to_string(prompts.size()), random_record(length, prompts.size())});
    std::ranges::replace(prompts.back().tokens, kEnd, 3);
  }
  return prompts;
}

GenerateOptions with(const Sampling& sampling, int64_t samples = 1) {
  return {.sampling = sampling, .seed = 9, .samples = samples, .max_tokens = 1000, .end = kEnd, .num_tokens = 33};
}

std::vector<Generated> run(CachedModel& model, const GenerateOptions& options, const std::vector<Prompt>& prompts) {
  std::vector<Generated> results;
  generate(model, options, prompts, [&](const Generated& result) { results.push_back(result); });
  return results;
}

bool same(const Generated& a, const Generated& b) {
  return a.tokens == b.tokens && a.log_likelihood == b.log_likelihood && a.ended == b.ended;
}

// The whole sequence anew for every token.
class FullRecomputation {
 public:
  explicit FullRecomputation(Precision precision = Precision::kF32)
      : ctx_{.arena = growing(), .precision = precision},
        decoder_(writing_model()),
        parameters_(decoder_.parameters(), precision, {.parameters = growing()}) {
    parameters_.initialise(ctx_, kWeights);
    parameters_.refresh_working(ctx_);
    ctx_.parameters = &parameters_;
  }
  std::vector<float> logits_after(const std::vector<int32_t>& tokens) {
    data::PackedBatch batch;
    std::ranges::copy(tokens, batch.open_sequence(std::ssize(tokens)).begin());
    batch.close_sequence();
    const Tensor last = decoder_.logits(ctx_, nn::view_of(batch)).rows(std::ssize(tokens) - 1, 1);
    return {last.data<float>(), last.data<float>() + last.numel()};
  }

 private:
  static std::shared_ptr<Arena> growing() { return Arena::growing("test", Device{}, host_memory()); }
  Context ctx_;
  model::Decoder decoder_;
  nn::LocalParameters parameters_;
};

// Both paths differ by the rounding of attention alone; what reaches a logit has passed sums of so many terms.
double rounding(const std::vector<float>& logits) {
  const auto config = writing_model();
  double largest = 0;
  for (const float logit : logits) largest = std::max(largest, std::abs(static_cast<double>(logit)));
  return 0x1p-24 * static_cast<double>(config.layers * (3 * config.hidden + config.intermediate + config.context)) * largest;
}

TEST(CachedModel, LogitsAreThoseOfFullRecomputation) {
  const auto model = make_model(3);
  FullRecomputation full;
  const std::vector<std::vector<int32_t>> sequences{random_record(40, 1), random_record(33, 2), random_record(35, 3)};
  const std::vector<int32_t> slots{2, 0, 1};
  std::vector<size_t> lengths{7, 1, 3};
  const auto compare = [&](const Tensor& logits) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto want = full.logits_after({sequences[s].begin(), sequences[s].begin() + static_cast<ptrdiff_t>(lengths[s])});
      const auto other =
          full.logits_after({sequences[s].begin() + 1, sequences[s].begin() + 1 + static_cast<ptrdiff_t>(lengths[s])});
      double worst = 0, control = 0;
      for (size_t v = 0; v < want.size(); ++v) {
        const double got = logits.data<float>()[s * want.size() + v];
        worst = std::max(worst, std::abs(got - want[v]));
        control = std::max(control, std::abs(got - other[v]));
      }
      EXPECT_LE(worst, rounding(want)) << "sequence " << s << " of " << lengths[s];
      EXPECT_GT(control, rounding(want)) << "the comparison sees nothing";
    }
  };
  data::PackedBatch prompts;
  for (size_t s = 0; s < sequences.size(); ++s) {
    std::copy_n(sequences[s].begin(), lengths[s], prompts.open_sequence(static_cast<int64_t>(lengths[s])).begin());
    prompts.close_sequence();
  }
  compare(model->prefill(prompts, slots).logits);
  for (int step = 0; step < 30; ++step) {
    CachedModel::Next next;
    for (size_t s = 0; s < sequences.size(); ++s) {
      next.tokens.push_back(sequences[s][lengths[s]]);
      next.slots.push_back(slots[s]);
      next.positions.push_back(static_cast<int32_t>(lengths[s]++));
    }
    compare(model->decode(next));
  }
}

// At most twice as far from f32, in the mean of squares, as a full recomputation in bf16. Its own control: another token is
// farther.
TEST(CachedModel, Bf16ErrsNoMoreThanFullRecomputation) {
  if (!cpu::has_fast_bf16()) GTEST_SKIP() << "no fast bf16 products";
  const auto model = make_model(1, nullptr, 40, Precision::kBF16);
  FullRecomputation exact, full(Precision::kBF16);
  const auto tokens = random_record(40, 5);
  data::PackedBatch prompt;
  prompt.open_sequence(1)[0] = tokens[0];
  prompt.close_sequence();
  model->prefill(prompt, std::vector<int32_t>{0});
  double cached_error = 0, full_error = 0, control = 0;
  for (int32_t at = 1; at < 39; ++at) {
    const Tensor cached = model->decode({.tokens = {tokens[static_cast<size_t>(at)]}, .slots = {0}, .positions = {at}});
    const auto want = exact.logits_after({tokens.begin(), tokens.begin() + at + 1});
    const auto low = full.logits_after({tokens.begin(), tokens.begin() + at + 1});
    const auto other = exact.logits_after({tokens.begin(), tokens.begin() + at});
    for (size_t v = 0; v < want.size(); ++v) {
      cached_error += std::pow(cached.data<float>()[v] - want[v], 2);
      full_error += std::pow(low[v] - want[v], 2);
      control += std::pow(other[v] - want[v], 2);
    }
  }
  EXPECT_GT(full_error, 0);
  EXPECT_LE(cached_error, 4 * full_error);
  EXPECT_GT(control, 4 * full_error) << "the comparison sees nothing";
}

TEST(Generate, GreedyIsTheLikeliestTokenOfFullRecomputation) {
  const auto model = make_model(3);
  FullRecomputation full;
  const auto prompts = random_prompts();
  const auto results = run(*model, with({.temperature = 0}), prompts);
  ASSERT_EQ(results.size(), prompts.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& tokens = results[i].tokens;
    EXPECT_EQ(results[i].prompt, &prompts[i]);
    EXPECT_TRUE(std::equal(prompts[i].tokens.begin(), prompts[i].tokens.end(), tokens.begin()));
    EXPECT_TRUE(results[i].ended ? tokens.back() == kEnd : std::ssize(tokens) == 40);
    for (size_t t = prompts[i].tokens.size(); t < tokens.size(); ++t) {
      const auto logits = full.logits_after({tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(t)});
      const float best = *std::ranges::max_element(logits);
      EXPECT_GE(logits[static_cast<size_t>(tokens[t])], best - 2 * rounding(logits)) << "prompt " << i << ", token " << t;
    }
  }
}

TEST(Generate, ResultsDependOnNeitherSlotsNorThreadsNorSamples) {
  const auto prompts = random_prompts();
  ThreadPool pool(3);
  const auto alone = make_model(1), some = make_model(3), all = make_model(40, &pool);
  const auto want = run(*alone, with({.temperature = 2.0}, 4), prompts);
  ASSERT_EQ(want.size(), 4 * prompts.size());
  const auto in_some = run(*some, with({.temperature = 2.0}, 4), prompts),
             in_all = run(*all, with({.temperature = 2.0}, 4), prompts);
  const auto two = run(*some, with({.temperature = 2.0}, 2), prompts);
  size_t different = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(want[i].prompt, &prompts[i / 4]);
    EXPECT_EQ(want[i].sample, i % 4);
    EXPECT_TRUE(same(want[i], in_some[i])) << i;
    EXPECT_TRUE(same(want[i], in_all[i])) << i;
    if (i % 4 < 2) {
      EXPECT_TRUE(same(want[i], two[i / 4 * 2 + i % 4])) << i;
    }
    different += i > 0 && !same(want[i], want[i - 1]) ? 1 : 0;
  }
  EXPECT_GT(different, want.size() / 2);
  auto other = with({.temperature = 2.0}, 4);
  other.seed = 10;
  EXPECT_FALSE(same(run(*alone, other, prompts)[0], want[0]));
}

TEST(Generate, LogLikelihoodIsWhatScoreGives) {
  const auto model = make_model(4);
  Inference inference({.model = writing_model(), .batch_tokens = 64}, nullptr);
  Context ctx;
  inference.parameters().initialise(ctx, kWeights);
  std::vector<double> scores;
  Scorer scorer(inference, 40, 1, [&](const RecordScore& score) { scores.push_back(score.log_likelihood()); });
  const auto prompts = random_prompts();
  const auto results = run(*model, with({.temperature = 1.5}), prompts);
  for (const auto& result : results) scorer.add("", result.tokens);
  scorer.finish();
  for (size_t i = 0; i < results.size(); ++i) {
    const double bound = 2 * static_cast<double>(results[i].tokens.size()) * rounding({10.0F});  // logits stay below 10
    EXPECT_NEAR(results[i].log_likelihood, scores[i], bound) << i;
    EXPECT_GT(std::abs(results[i].log_likelihood - scores[(i + 1) % scores.size()]), bound);
  }
}

TEST(Generate, EndsAtTheEndTokenOrByLength) {
  const auto prompts = random_prompts();
  auto options = with({.temperature = 2.0});
  options.max_tokens = 3;
  const auto model = make_model(4);
  for (const auto& result : run(*model, options, prompts)) {
    const auto written = std::ssize(result.tokens) - std::ssize(result.prompt->tokens);
    EXPECT_EQ(std::ranges::count(result.tokens, kEnd), result.ended ? 1 : 0);
    EXPECT_TRUE(result.ended || written == 3 || std::ssize(result.tokens) == 40) << written;
    EXPECT_LE(written, 3);
  }
  options.end = -1;
  options.max_tokens = 1000;
  options.num_tokens = 5;
  for (const auto& result : run(*model, options, prompts)) {
    EXPECT_EQ(result.tokens.size(), 40);
    EXPECT_FALSE(result.ended);
    const auto first = result.tokens.begin() + std::ssize(result.prompt->tokens);
    EXPECT_TRUE(std::all_of(first, result.tokens.end(), [](int32_t token) { return token < 5; }));
  }
}

TEST(Generate, APromptThatDoesNotFitIsAnError) {
  const auto model = make_model(2, nullptr, /*capacity=*/8);
  EXPECT_THROW(run(*model, with({}), {{"p", random_record(8, 1)}}), Error);
  EXPECT_THROW(run(*model, with({}), {{"p", {}}}), Error);
  EXPECT_EQ(run(*model, with({}), {{"p", {0, 4, 5, 6, 7, 8, 9}}}).size(), 1);
  EXPECT_EQ(run(*model, with({}), {}).size(), 0);
}

}  // namespace
}  // namespace cistron::eval
