#include "cistron/model/decoder.h"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/model/decoder_support.h"

namespace cistron::test {
namespace {

using model::Experts;
using model::Recompute;

const std::vector<int32_t> kLengths{17, 1, 30, 2, 14};

std::vector<Tensor> gradients(const Context& ctx, SmallModel& m) {
  std::vector<Tensor> all;
  for (auto& entry : m.parameters.entries()) all.push_back(copy_of(ctx, entry.grad));
  return all;
}

void expect_same_gradients(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << "parameter " << i;
}

// The derivative along each parameter's own gradient: central differences of an fp32 loss, so a coarse bound. The negative
// control shows that it is fine enough to see a gradient that is wrong by a tenth.
TEST(Decoder, GradientsAreThoseOfTheObjective) {
  CpuContext ctx;
  RandomBatch data(kLengths, 29, 5);
  auto config = small_config();
  config.clip_qkv = 1.5;
  SmallModel m(ctx, config);
  m.step(data.batch());
  const auto grads = gradients(ctx, m);
  for (size_t i = 0; i < grads.size(); ++i) {
    auto& entry = m.parameters.entries()[i];
    const auto g = to_double(grads[i]);
    double norm = 0;
    for (const double x : g) norm += x * x;
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 0) << entry.parameter->name;
    const auto start = to_double(entry.master);
    const double h = 2e-3;
    const auto moved = [&](double step) {
      for (size_t j = 0; j < start.size(); ++j) entry.master.span<float>()[j] = static_cast<float>(start[j] + step * g[j] / norm);
      return m.step(data.batch());
    };
    const double slope = (moved(h) - moved(-h)) / (2 * h);
    moved(0);
    EXPECT_NEAR(slope / norm, 1.0, 0.03) << entry.parameter->name;
    EXPECT_GT(std::abs(slope / (1.1 * norm) - 1.0), 0.03) << "negative control, " << entry.parameter->name;
  }
}

TEST(Decoder, LoopAndGroupedAgreeBitForBit) {
  CpuContext ctx;
  RandomBatch data(kLengths, 29, 5);
  SmallModel grouped(ctx, small_config());
  const double a = grouped.step(data.batch());
  const auto grads = gradients(ctx, grouped);
  CpuContext other;
  SmallModel loop(other, small_config(), Experts::kLoop);
  EXPECT_EQ(a, loop.step(data.batch()));
  expect_same_gradients(grads, gradients(other, loop));
}

TEST(Decoder, RecomputationChangesNoBit) {
  CpuContext ctx(2);
  RandomBatch data(kLengths, 29, 5);
  SmallModel m(ctx, small_config());
  const double loss = m.step(data.batch(), Recompute::kNone);
  const auto grads = gradients(ctx, m);
  for (const auto recompute : {Recompute::kMlp, Recompute::kLayer}) {
    EXPECT_EQ(loss, m.step(data.batch(), recompute));
    expect_same_gradients(grads, gradients(ctx, m));
  }
}

TEST(Decoder, ThreadsChangeNoBit) {
  RandomBatch data(kLengths, 29, 5);
  CpuContext one(1);
  SmallModel m(one, small_config());
  const double loss = m.step(data.batch());
  const auto grads = gradients(one, m);
  for (const int threads : {2, 3}) {
    CpuContext many(threads);
    SmallModel n(many, small_config());
    EXPECT_EQ(loss, n.step(data.batch()));
    expect_same_gradients(grads, gradients(many, n));
  }
}

TEST(Decoder, ASequenceIsTheSameAloneAndPacked) {
  CpuContext ctx(2);
  RandomBatch data(kLengths, 29, 5);
  SmallModel m(ctx, small_config());
  const auto nll_of = [&](RandomBatch& d) {
    const nn::Batch batch = d.batch();
    Tensor nll = poisoned(ctx, {batch.num_tokens()}, DType::kF32);
    m.decoder.evaluate(ctx, batch, nll, m.losses);
    return nll;
  };
  const Tensor packed = nll_of(data);
  for (size_t s = 0; s < kLengths.size(); ++s) {
    RandomBatch one = data.only(s);
    EXPECT_TRUE(same_bits(nll_of(one), packed.rows(data.begin(s), kLengths[s]))) << "sequence " << s;
  }
}

TEST(Decoder, TheMetaPlanIsWhatTheArenaUses) {
  for (const auto precision : {Precision::kF32, Precision::kBF16})
    for (const auto recompute : {Recompute::kNone, Recompute::kMlp, Recompute::kLayer}) {
      RandomBatch data(kLengths, 29, 5);
      Context meta = meta_context(precision);
      SmallModel planned(meta, small_config());
      planned.step(data.batch(meta.device), recompute);
      CpuContext ctx(2, precision);
      SmallModel m(ctx, small_config());
      m.step(data.batch(), recompute);
      EXPECT_EQ(meta.arena->peak(), ctx.arena->peak());
      EXPECT_EQ(meta.arena->in_use(), ctx.arena->in_use());
    }
}

TEST(Decoder, RecomputationSavesMemory) {
  RandomBatch data(kLengths, 29, 5);
  std::vector<int64_t> peaks;
  for (const auto recompute : {Recompute::kNone, Recompute::kMlp, Recompute::kLayer}) {
    Context meta = meta_context();
    auto config = small_config();
    config.layers = 6;
    SmallModel planned(meta, config);
    planned.step(data.batch(meta.device), recompute);
    peaks.push_back(meta.arena->peak());
  }
  EXPECT_GT(peaks[0], peaks[1]);
  EXPECT_GT(peaks[1], peaks[2]);
}

TEST(Decoder, OddShapesRun) {
  for (auto change : {+[](model::ModelConfig& c) { c.experts = c.top_k = 1; }, +[](model::ModelConfig& c) { c.top_k = 5; },
                      +[](model::ModelConfig& c) { c.tied_head = true; }, +[](model::ModelConfig& c) { c.head_dim = 10; },
                      +[](model::ModelConfig& c) { c.experts = 40; }}) {
    auto config = small_config();
    change(config);
    for (const auto& lengths : {std::vector<int32_t>{2}, {1, 1, 2}, kLengths}) {
      CpuContext ctx(2);
      RandomBatch data(lengths, 29, 5);
      SmallModel m(ctx, config);
      EXPECT_TRUE(std::isfinite(m.step(data.batch())));
      for (const auto& grad : gradients(ctx, m))
        for (const double x : to_double(grad)) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST(Decoder, AccumulatedMicroBatchesEqualOneBatch) {
  CpuContext ctx;
  auto config = small_config();
  config.aux_loss = config.z_loss = 0;  // they belong to a micro-batch's own statistics
  RandomBatch data(kLengths, 29, 5);
  SmallModel m(ctx, config);
  m.step(data.batch());
  const auto whole = gradients(ctx, m);
  m.parameters.begin_step();
  for (size_t s = 0; s < kLengths.size(); ++s) {
    RandomBatch one = data.only(s);
    const StepState state{.loss_scale = 0.1F};
    m.decoder.train_step(ctx, one.batch(), state, m.losses, Recompute::kNone);
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    double scale = 0;
    for (const double x : to_double(whole[i])) scale = std::max(scale, std::abs(x));
    EXPECT_TRUE(within(m.parameters.entries()[i].grad, to_double(whole[i]), 1e-5 * scale)) << i;
  }
}

TEST(Decoder, ANanIsNamedWhereItArose) {
  CpuContext ctx;
  RandomBatch data(kLengths, 29, 5);
  SmallModel m(ctx, small_config());
  m.parameters.find("layers.1.moe.down").master.span<float>()[7] = std::nanf("");
  std::string first;
  ctx.observe = [&](std::string_view module, const Tensor& value) {
    for (const double x : to_double(value))
      if (first.empty() && !std::isfinite(x)) first = module;
  };
  m.step(data.batch());
  EXPECT_THAT(first, ::testing::HasSubstr("layers.1.moe"));
}

}  // namespace
}  // namespace cistron::test
