#include "cistron/dist/expert_exchange.h"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "cistron/dist/meta.h"
#include "cistron/dist/overflow.h"
#include "tests/dist/spread_support.h"

namespace cistron::test {
namespace {

using dist::Communicator;
using dist::ExpertLayout;
using dist::ExpertRoute;
using dist::Mesh;
using testing::HasSubstr;

constexpr int64_t kHidden = 17;
constexpr double kAll = 1e9;  // headroom for whatever comes

class Exchange : public OnEveryWorld {};
INSTANTIATE_TEST_SUITE_P(Dist, Exchange, testing::ValuesIn(worlds()), world_name);

/// Small integers, so that sums are exact in every dtype.
Tensor tokens_on(const Context& ctx, int64_t tokens, DType dtype, uint64_t seed) {
  std::vector<double> values = to_double(random_tensor(ctx, {tokens, kHidden}, DType::kF64, seed));
  for (double& x : values) x = std::clamp(std::round(2 * x), -3.0, 3.0);
  return tensor_of(ctx, {tokens, kHidden}, dtype, values);
}

/// What one rank gives, and which ranks of its ep group get each token.
struct Source {
  Tensor x, experts, weights;
  std::vector<std::set<int>> ranks;

  Source(const Context& ctx, const SpreadCase& c, const Mesh& mesh, int rank, DType dtype) {
    const int ep = mesh.shape().ep;
    experts = choices_of(ctx, c, ep, rank, 11);
    x = tokens_on(ctx, experts.dim(0), dtype, 20 + static_cast<uint64_t>(rank));
    weights = random_tensor(ctx, experts.shape(), DType::kF32, 30 + static_cast<uint64_t>(rank));
    ranks.resize(static_cast<size_t>(experts.dim(0)));
    const auto chosen = ints(experts);
    for (size_t i = 0; i < chosen.size(); ++i)
      for (int p = 0; p < ep; ++p) {
        const dist::Range held = dist::experts_of(c.experts, ep, p);
        if (chosen[i] >= held.begin && chosen[i] < held.end()) ranks[i / static_cast<size_t>(c.top_k)].insert(p);
      }
  }
};

void append(std::vector<double>& to, const Tensor& rows, int64_t row) {
  const auto values = to_double(rows.rows(row, 1));
  to.insert(to.end(), values.begin(), values.end());
}

void check_exchange(const Mesh& mesh, const SpreadCase& c, DType dtype) {
  CpuContext ctx;
  ctx.mesh = &mesh;
  ctx.headroom = kAll;
  const int me = mesh.ep().rank(), first = mesh.world().rank() - me;
  std::vector<double> x, experts, weights;  // what should come, by source, then token
  for (int p = 0; p < mesh.shape().ep; ++p) {
    const Source source(ctx, c, mesh, first + p, dtype);
    for (int64_t t = 0; t < source.x.dim(0); ++t) {
      if (!source.ranks[static_cast<size_t>(t)].contains(me)) continue;
      append(x, source.x, t);
      append(experts, source.experts, t);
      append(weights, source.weights, t);
    }
  }
  const Source mine(ctx, c, mesh, mesh.world().rank(), dtype);
  const ExpertRoute route = dist::plan_route(ctx, mine.experts, c.experts);
  const Tensor got = dist::send_tokens(ctx, route, mine.x), got_experts = dist::send_choices(ctx, route, mine.experts);
  const Tensor got_weights = dist::send_tokens(ctx, route, mine.weights);
  const auto used = static_cast<int64_t>(x.size()) / kHidden;
  ASSERT_LE(used, got.dim(0));
  EXPECT_TRUE(within(got.rows(0, used), x, 0.0));
  EXPECT_TRUE(within(got_experts.rows(0, used), experts, 0.0));
  EXPECT_TRUE(within(got_weights.rows(0, used), weights, 0.0));
  for (const int32_t expert : ints(got_experts.rows(used, got.dim(0) - used))) EXPECT_EQ(expert, -1);

  // Rank p returns (p + 1) times what it got.
  const Tensor parts = poisoned(ctx, got.shape(), dtype);
  std::vector<double> scaled = x;
  for (double& value : scaled) value *= me + 1;
  const Tensor filled = tensor_of(ctx, {used, kHidden}, dtype, scaled);
  std::copy_n(static_cast<const std::byte*>(filled.raw()), filled.bytes(), static_cast<std::byte*>(parts.raw()));
  std::vector<double> want = to_double(mine.x), without_last = want;
  for (size_t i = 0; i < want.size(); ++i) {
    const auto& ranks = mine.ranks[i / kHidden];
    without_last[i] *= std::accumulate(ranks.begin(), std::prev(ranks.end()), 0, [](int sum, int p) { return sum + p + 1; });
    want[i] *= std::accumulate(ranks.begin(), ranks.end(), 0, [](int sum, int p) { return sum + p + 1; });
  }
  const Tensor out = dist::return_tokens(ctx, route, parts);
  EXPECT_TRUE(within(out, want, 0.0));
  if (!want.empty()) {
    EXPECT_FALSE(within(out, without_last, 0.0)) << "control: the last rank's part forgotten";
  }
}

TEST_P(Exchange, ATokenGoesOnceToEachRankOfItsExpertsAndThePartsAreAdded) {
  run([](Communicator& world) {
    for (const SpreadCase& c : spread_cases())
      for (const DType dtype : {DType::kF32, DType::kBF16})
        for_meshes(world, c.experts, [&](const Mesh& mesh) { check_exchange(mesh, c, dtype); });
  });
}

// A recorded choice may be anything.
TEST_P(Exchange, AnExpertThatThereIsNotIsRefused) {
  run([](Communicator& world) {
    const Mesh mesh(world, {1, world.size()});
    CpuContext ctx;
    ctx.mesh = &mesh;
    const Tensor experts = random_choices(ctx, 20, 2, 8, Choice::kRandom, 5);
    for (const int32_t expert : {-1, 8, INT32_MAX}) {
      experts.span<int32_t>()[39] = expert;
      EXPECT_THAT(error_of([&] { (void)dist::plan_route(ctx, experts, 8); }), HasSubstr("a token's expert is"));
    }
  });
}

/// The headroom that would have been enough, by the exception; 0: none was thrown.
double overflow_of(Context& ctx, const Tensor& experts, int64_t num_experts) {
  try {
    const ExpertRoute route = dist::plan_route(ctx, experts, num_experts);
    dist::send_choices(ctx, route, experts);
  } catch (const dist::Overflow& overflow) {
    return overflow.enough();
  }
  return 0.0;
}

// Only the last dp group is too much for one of its ranks, yet all ranks must hear of it.
TEST_P(Exchange, EveryRankThrowsTheSameOverflowAndGoesOn) {
  run([](Communicator& world) {
    for_meshes(world, 8, [&](const Mesh& mesh) {
      CpuContext ctx;
      ctx.mesh = &mesh;
      const int ep = mesh.shape().ep;
      const bool skewed = mesh.dp().rank() == mesh.shape().dp - 1;
      const int64_t among = skewed ? std::max<int64_t>(2, dist::experts_of(8, ep, 0).count) : 8;
      const Tensor experts = random_choices(ctx, 300, 2, among, Choice::kRandom, 5 + static_cast<uint64_t>(world.rank()));
      double enough = overflow_of(ctx, experts, 8);
      EXPECT_EQ(enough > 0, ep > 1);
      std::vector<double> highest{enough};
      world.all_reduce(view_of(highest), dist::Reduction::kMax).wait();
      EXPECT_EQ(enough, highest[0]);
      if (ep == 1) return;
      if (ep == 2) {
        EXPECT_DOUBLE_EQ(enough, 2.0);  // all rows to one of two
      }
      ctx.headroom = enough * 0.99;
      EXPECT_EQ(overflow_of(ctx, experts, 8), enough);
      ctx.headroom = enough;
      EXPECT_EQ(overflow_of(ctx, experts, 8), 0.0);
    });
  });
}

TEST_P(Exchange, EvenChoicesFitTheDefaultHeadroom) {
  run([](Communicator& world) {
    for_meshes(world, 8, [&](const Mesh& mesh) {
      CpuContext ctx;
      ctx.mesh = &mesh;
      const Tensor experts = random_choices(ctx, 1000, 2, 8, Choice::kRandom, 7 + static_cast<uint64_t>(world.rank()));
      EXPECT_EQ(overflow_of(ctx, experts, 8), 0.0);
    });
  });
}

TEST(ExpertRoom, IsTheMeanTimesTheHeadroomButNeverMoreThanAll) {
  const ExpertLayout layout{.experts = 8, .top_k = 2, .ep = 2};
  const auto mean = dist::mean_load(layout, 0, 2800);
  EXPECT_DOUBLE_EQ(mean.tokens, 2200);  // 1 - (4 x 3) / (8 x 7) of them
  EXPECT_DOUBLE_EQ(mean.rows, 2800);
  EXPECT_EQ(dist::room_for(layout, 0, 2800, 1.25).tokens, 2750);
  EXPECT_EQ(dist::room_for(layout, 0, 2800, 1.25).rows, 3500);
  EXPECT_EQ(dist::room_for(layout, 0, 2800, 10.0).tokens, 2800);
  EXPECT_EQ(dist::room_for(layout, 0, 2800, 10.0).rows, 5600);
  EXPECT_EQ(dist::room_for(layout, 0, 30, 1.25).tokens, 30);
  EXPECT_EQ(dist::room_for(layout, 0, 0, 1.25).rows, 0);
  const ExpertLayout uneven{.experts = 5, .top_k = 2, .ep = 3};  // 2, 2, 1
  EXPECT_DOUBLE_EQ(dist::mean_load(uneven, 2, 1000).tokens, 400);
  EXPECT_DOUBLE_EQ(dist::mean_load(uneven, 2, 1000).rows, 400);
  EXPECT_EQ(dist::room_for(uneven, 2, 1000, 100.0).rows, 1000);
  const ExpertLayout all{.experts = 4, .top_k = 4, .ep = 4};  // every token to every rank
  EXPECT_DOUBLE_EQ(dist::mean_load(all, 3, 1000).tokens, 1000);
}

// Random choices have the mean that the room is planned by.
TEST(ExpertRoom, MeanIsThatOfRandomChoices) {
  CpuContext ctx;
  const ExpertLayout layout{.experts = 7, .top_k = 3, .ep = 3};
  const Tensor experts = random_choices(ctx, 20000, 3, 7, Choice::kRandom, 3);
  for (int index = 0; index < 3; ++index) {
    const dist::Range held = dist::experts_of(7, 3, index);
    const auto chosen = ints(experts);
    double tokens = 0, rows = 0;
    for (size_t t = 0; t < 20000; ++t) {
      int here = 0;
      for (size_t j = 0; j < 3; ++j) here += chosen[3 * t + j] >= held.begin && chosen[3 * t + j] < held.end() ? 1 : 0;
      tokens += here > 0 ? 1 : 0;
      rows += here;
    }
    const auto mean = dist::mean_load(layout, index, 20000);
    EXPECT_NEAR(tokens, mean.tokens, 5 * std::sqrt(20000.0 / 4));  // five deviations of a sum of bits at most
    EXPECT_NEAR(rows, mean.rows, 5 * 3 * std::sqrt(20000.0 / 4));
  }
}

TEST(ExchangeOnMeta, TakesTheRoomOfARealOne) {
  for (const int rank : {0, 3}) {
    const auto mesh = dist::meta_mesh({2, 2}, rank);
    Context ctx = meta_context();
    ctx.mesh = mesh.get();
    const Tensor experts = ctx.empty({1400, 2}, DType::kI32), x = ctx.empty({1400, 8});
    const ExpertRoute route = dist::plan_route(ctx, experts, 8);
    EXPECT_EQ(dist::send_tokens(ctx, route, x).shape(), (Shape{2750, 8}));
    EXPECT_EQ(dist::return_tokens(ctx, route, ctx.empty({2750, 8})).shape(), (Shape{1400, 8}));
  }
}

}  // namespace
}  // namespace cistron::test
