// A decoder whose experts are spread over ranks, each with its part of the batch, against one rank with all of it.
#include <gmock/gmock.h>

#include "cistron/data/split.h"
#include "cistron/dist/meta.h"
#include "cistron/dist/overflow.h"
#include "cistron/ops/elementwise.h"
#include "tests/dist/support.h"
#include "tests/model/decoder_support.h"
#include "tests/train/support.h"

namespace cistron::test {
namespace {

using dist::Communicator;
using dist::Mesh;
using dist::MeshShape;
using model::Experts;
using model::Recompute;

constexpr double kRelative = 1e-5;  // what losses may differ by between layouts

class SpreadDecoder : public OnEveryWorld {};
INSTANTIATE_TEST_SUITE_P(Dist, SpreadDecoder, testing::ValuesIn(worlds()), world_name);

model::ModelConfig config_of(int64_t experts) {
  model::ModelConfig config = small_config();
  config.experts = experts;
  config.vocabulary = 33;
  return config;
}

/// What a rank holds of a decoder, ready to step.
class Part {
 public:
  Part(Context& ctx, const model::ModelConfig& config, Experts experts, const MeshShape& shape, int rank)
      : decoder_(config, {.experts = experts, .mesh = shape, .rank = rank}),
        parameters_(decoder_.parameters(), ctx.precision, arenas(ctx)),
        losses_(model::empty_losses(ctx, config)),
        ctx_(ctx) {
    ctx.parameters = &parameters_;
    parameters_.initialise(ctx, 3);
  }

  struct Result {
    double cross_entropy;
    Tensor router;
    std::map<std::string, Tensor> grads;  // summed over the ranks that share the parameter
  };
  void pass(const nn::Batch& batch, Recompute recompute) {
    for (const Tensor& sum : {losses_.cross_entropy, losses_.router}) ops::zero(ctx_, {.out = sum});
    parameters_.begin_step();
    const StepState state{.loss_scale = 0.1F};
    decoder_.train_step(ctx_, batch, state, losses_, recompute);
    parameters_.check_all_have_grads();
  }
  Result step(const nn::Batch& batch, Recompute recompute) {
    pass(batch, recompute);
    if (ctx_.mesh != nullptr) ctx_.mesh->world().all_reduce(losses_.cross_entropy).wait();
    Result result{.cross_entropy = losses_.cross_entropy.span<double>()[0], .router = copy_of(ctx_, losses_.router), .grads = {}};
    for (const auto& entry : parameters_.entries()) result.grads[entry.parameter->name] = summed(*entry.parameter, entry.grad);
    return result;
  }
  [[nodiscard]] const nn::LocalParameters& parameters() const { return parameters_; }

 private:
  Tensor summed(const Parameter& parameter, const Tensor& grad) {
    Tensor sum = copy_of(ctx_, grad);
    if (ctx_.mesh != nullptr) (parameter.count >= 0 ? ctx_.mesh->dp() : ctx_.mesh->world()).all_reduce(sum).wait();
    return sum;
  }
  static nn::ParameterArenas arenas(const Context& ctx) {
    const auto make = [&](const char* name) {
      return ctx.device.is_meta() ? Arena::meta(name) : Arena::growing(name, ctx.device, host_memory());
    };
    return {.parameters = make("parameters"), .gradients = make("gradients"), .optimizer = nullptr};
  }

  model::Decoder decoder_;
  nn::LocalParameters parameters_;
  model::Losses losses_;
  Context& ctx_;
};

double size_of_difference(const Tensor& a, const Tensor& b, double factor = 1.0) {
  const auto x = to_double(a), y = to_double(b);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += (factor * x[i] - y[i]) * (factor * x[i] - y[i]);
  return std::sqrt(sum);
}

void expect_same(const Part::Result& a, const Part::Result& b) {
  EXPECT_EQ(a.cross_entropy, b.cross_entropy);
  EXPECT_TRUE(same_bits(a.router, b.router));
  for (const auto& [name, grad] : a.grads) EXPECT_TRUE(same_bits(grad, b.grads.at(name))) << name;
}

void check_against_one(const Part::Result& one, const Part::Result& got, const Part& part) {
  EXPECT_NEAR(got.cross_entropy, one.cross_entropy, kRelative * std::abs(one.cross_entropy));
  const auto stats = to_double(got.router), whole = to_double(one.router);
  for (size_t i = 0; i < stats.size(); ++i) EXPECT_NEAR(stats[i], whole[i], kRelative * std::abs(whole[i])) << "statistic " << i;
  for (const auto& entry : part.parameters().entries()) {
    const Parameter& p = *entry.parameter;
    const Tensor& mine = got.grads.at(p.name);
    const Tensor all = one.grads.at(p.name), want = p.count < 0 ? all : all.rows(p.begin, p.count);
    const double norm = size_of_difference(all, all, 0.0);
    EXPECT_LE(size_of_difference(mine, want), kRelative * norm) << p.name;
    const double own = size_of_difference(want, want, 0.0);
    if (own > norm / 50) {
      EXPECT_GT(size_of_difference(mine, want, 0.999), kRelative * norm) << "control: " << p.name;
    }
  }
}

void check_decoder(Communicator& world, const MeshShape& shape, const model::ModelConfig& config,
                   const data::PackedBatch& batch) {
  SCOPED_TRACE(dist::describe(shape, config.experts));
  CpuContext alone;
  Part whole(alone, config, Experts::kGrouped, {}, 0);
  const auto one = whole.step(nn::view_of(batch), Recompute::kNone);

  const Mesh mesh(world, shape);
  CpuContext ctx;
  ctx.mesh = &mesh;
  ctx.headroom = 1e9;
  const data::PackedBatch mine = data::part_of_rank(batch, world.size(), world.rank());
  Part part(ctx, config, Experts::kGrouped, shape, world.rank());
  const auto got = part.step(nn::view_of(mine), Recompute::kNone);
  check_against_one(one, got, part);
  for (const auto recompute : {Recompute::kMlp, Recompute::kLayer}) expect_same(part.step(nn::view_of(mine), recompute), got);
  Part loop(ctx, config, Experts::kLoop, shape, world.rank());
  expect_same(loop.step(nn::view_of(mine), Recompute::kLayer), got);
}

TEST_P(SpreadDecoder, IsTheDecoderOfOneRank) {
  run([](Communicator& world) {
    for (const int64_t experts : {5, 7})
      for (int ep = 1; ep <= world.size(); ++ep) {
        if (world.size() % ep != 0 || ep > experts) continue;
        const MeshShape shape{world.size() / ep, ep};
        check_decoder(world, shape, config_of(experts), train::test::random_batch(150, 5));
        check_decoder(world, shape, config_of(experts), train::test::random_batch(1, 6));  // for all but one rank nothing
      }
  });
}

TEST_P(SpreadDecoder, MoreExpertParallelRanksThanExpertsAreRefused) {
  run([](Communicator& world) {
    if (world.size() < 3) return;
    EXPECT_THAT(error_of([&] { model::Decoder(config_of(2), {.mesh = {1, world.size()}, .rank = world.rank()}); }),
                testing::HasSubstr("expert-parallel ranks for 2 experts"));
  });
}

// In the middle of a step, on all ranks alike; the same decoder then takes the step with more room.
TEST_P(SpreadDecoder, StepsAgainAfterAnOverflow) {
  run([](Communicator& world) {
    if (world.size() < 2) return;
    const MeshShape shape{1, world.size()};
    const Mesh mesh(world, shape);
    CpuContext ctx;
    ctx.mesh = &mesh;
    model::ModelConfig config = config_of(7);
    config.init_std = 2.0;  // few experts win
    const data::PackedBatch batch = train::test::random_batch(1200, 5);
    const data::PackedBatch mine = data::part_of_rank(batch, world.size(), world.rank());
    Part part(ctx, config, Experts::kGrouped, shape, world.rank());
    ctx.headroom = 0.5;
    double enough = 0;
    try {
      part.step(nn::view_of(mine), Recompute::kNone);
    } catch (const dist::Overflow& overflow) {
      enough = overflow.enough();
    }
    EXPECT_GT(enough, 0.5);
    ctx.headroom = 1e9;
    const auto got = part.step(nn::view_of(mine), Recompute::kNone);
    expect_same(part.step(nn::view_of(mine), Recompute::kMlp), got);
  });
}

// The plan's arena holds the real step's peak where each rank has as many tokens as was planned for.
TEST_P(SpreadDecoder, MetaPlansTheRealStep) {
  run([](Communicator& world) {
    const MeshShape shape{1, world.size()};
    const Mesh mesh(world, shape);
    for (const auto recompute : {Recompute::kNone, Recompute::kMlp, Recompute::kLayer}) {
      const auto meta_mesh = dist::meta_mesh(shape, world.rank());
      Context meta = meta_context();
      meta.mesh = meta_mesh.get();
      meta.headroom = 3.0;
      Part planned(meta, config_of(7), Experts::kGrouped, shape, world.rank());
      planned.pass(nn::meta_batch(100, 1), recompute);
      CpuContext ctx;
      ctx.mesh = &mesh;
      ctx.headroom = 3.0;
      Part real(ctx, config_of(7), Experts::kGrouped, shape, world.rank());
      data::PackedBatch batch;
      for (int32_t& token : batch.open_sequence(100)) token = world.rank() % 33;
      batch.close_sequence();
      real.pass(nn::view_of(batch), recompute);
      EXPECT_EQ(ctx.arena->peak(), meta.arena->peak());
    }
  });
}

}  // namespace
}  // namespace cistron::test
