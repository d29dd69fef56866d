// A MoE block whose experts are spread over ranks, against the same block on one rank and a float64 reference.
#include <gmock/gmock.h>

#include <map>
#include <optional>

#include "cistron/nn/local_parameters.h"
#include "cistron/nn/moe.h"
#include "cistron/ops/elementwise.h"
#include "tests/dist/moe_reference.h"
#include "tests/dist/spread_support.h"

namespace cistron::test {
namespace {

using dist::Communicator;
using dist::Mesh;
using dist::Range;
using nn::MoeBlock;
using testing::HasSubstr;

constexpr int64_t kHidden = 24, kIntermediate = 20;
constexpr float kBalance = 0.02F, kZ = 0.01F;

class SpreadMoe : public OnEveryWorld {};
INSTANTIATE_TEST_SUITE_P(Dist, SpreadMoe, testing::ValuesIn(worlds()), world_name);

MoeBlock::Options options_of(const SpreadCase& c, const std::optional<Range>& held, bool loop) {
  return {.name = "moe",
          .hidden = kHidden,
          .intermediate = kIntermediate,
          .experts = c.experts,
          .top_k = c.top_k,
          .loop = loop,
          .init_std = 0.3F,
          .held = held};
}

/// A block with its parameters on `ctx`.
struct Block {
  MoeBlock moe;
  std::shared_ptr<Arena> arena = Arena::growing("parameters", Device{}, host_memory());
  nn::LocalParameters parameters;

  Block(Context& ctx, const MoeBlock::Options& options)
      : moe(options),
        parameters(moe.parameters(), ctx.precision, {.parameters = arena, .gradients = arena, .optimizer = nullptr}) {
    ctx.parameters = &parameters;
    parameters.initialise(ctx, 3);
    parameters.begin_step();
  }
};

/// The numbers of a forward and backward pass; gradients are sums over all tokens of the world.
struct Pass {
  Tensor y, dx;                // of this rank's tokens
  Tensor drouter, dup, ddown;  // of this rank's experts
};

Tensor zero_stats(Context& ctx, int64_t experts) {
  Tensor stats = ctx.empty({2 * experts + 3}, DType::kF64);
  ops::zero(ctx, {.out = stats});
  return stats;
}

Pass run_block(Context& ctx, Block& block, const Tensor& x, const Tensor& dy, const Tensor& replay, bool local_stats = false) {
  nn::Saved saved;
  Pass pass;
  const Tensor stats = zero_stats(ctx, block.parameters.entries()[0].parameter->shape[0]);
  block.parameters.begin_step();
  pass.y = block.moe.forward(ctx, x, saved, stats, replay).y;
  if (ctx.mesh != nullptr && !local_stats) ctx.mesh->world().all_reduce(stats).wait();
  pass.dx = block.moe.backward(ctx, dy, {.stats = stats, .balance = kBalance, .z = kZ}, saved);
  EXPECT_TRUE(saved.empty());
  block.parameters.check_all_have_grads();
  const auto grad = [&](size_t i) { return copy_of(ctx, block.parameters.entries()[i].grad); };
  pass.drouter = grad(0);
  pass.dup = grad(1);
  pass.ddown = grad(2);
  if (ctx.mesh == nullptr) return pass;
  ctx.mesh->world().all_reduce(pass.drouter).wait();
  for (const Tensor& grad_of_experts : {pass.dup, pass.ddown}) ctx.mesh->dp().all_reduce(grad_of_experts).wait();
  return pass;
}

/// All ranks' tensors one behind the other.
Tensor joined(const Context& ctx, const std::vector<Tensor>& parts) {
  std::vector<double> values;
  int64_t rows = 0;
  for (const Tensor& part : parts) {
    const auto more = to_double(part);
    values.insert(values.end(), more.begin(), more.end());
    rows += part.dim(0);
  }
  return tensor_of(ctx, {rows, parts[0].dim(1)}, parts[0].dtype(), values);
}

/// Everything that a test compares with: the same block on one rank, with all ranks' tokens.
struct Whole {
  std::vector<Tensor> x, dy, experts;  // by rank
  Pass one;
  MoeResult exact;

  Whole(Context& ctx, const SpreadCase& c, const Mesh& mesh) {
    for (int rank = 0; rank < mesh.world().size(); ++rank) {
      const auto seed = static_cast<uint64_t>(rank);
      experts.push_back(choices_of(ctx, c, mesh.shape().ep, rank, 11));
      x.push_back(random_tensor(ctx, {experts.back().dim(0), kHidden}, ctx.activation_dtype(), 40 + seed));
      dy.push_back(random_tensor(ctx, x.back().shape(), ctx.activation_dtype(), 60 + seed));
    }
    const Tensor all_x = joined(ctx, x), all_dy = joined(ctx, dy), all_experts = joined(ctx, experts);
    Block block(ctx, options_of(c, std::nullopt, false));
    one = run_block(ctx, block, all_x, all_dy, all_experts);
    MoeWeights weights{.router = to_matrix(block.parameters.entries()[0].master)};
    for (int64_t e = 0; e < c.experts; ++e) {
      weights.up.push_back(to_matrix(block.parameters.weights(*block.parameters.entries()[1].parameter).rows(e, 1)));
      weights.down.push_back(to_matrix(block.parameters.weights(*block.parameters.entries()[2].parameter).rows(e, 1)));
    }
    const Matrix<int32_t> choices(all_experts.dim(0), all_experts.dim(1), ints(all_experts));
    exact = moe_reference(weights, to_matrix(all_x), to_matrix(all_dy), choices, kBalance, kZ);
    ctx.parameters = nullptr;
  }
  [[nodiscard]] Range tokens_of(int rank) const {
    Range range{0, x[static_cast<size_t>(rank)].dim(0)};
    for (int r = 0; r < rank; ++r) range.begin += x[static_cast<size_t>(r)].dim(0);
    return range;
  }
};

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double norm_of(const Tensor& tensor) {
  return distance(to_double(tensor), std::vector<double>(static_cast<size_t>(tensor.numel()), 0.0));
}

/// The error is at most twice that of one rank, or that of a few roundings where one rank happens to have hardly any.
testing::AssertionResult as_good(const Tensor& got, const Tensor& one, const std::vector<double>& exact, DType dtype) {
  if (got.numel() != one.numel() || exact.size() != static_cast<size_t>(one.numel()))
    return testing::AssertionFailure() << got.numel() << ", " << one.numel() << " and " << exact.size() << " elements";
  const double error = distance(to_double(got), exact), allowed = distance(to_double(one), exact);
  const double floor = 4 * unit_roundoff(dtype) * distance(exact, std::vector<double>(exact.size(), 0.0));
  if (error <= std::max(2 * allowed, floor)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "error " << error << ", one rank's is " << allowed << ", the floor " << floor;
}

std::vector<double> rows_of(const Matrix<double>& m, const Range& range) {
  const auto begin = m.data.begin() + range.begin * m.cols;
  return {begin, begin + range.count * m.cols};
}

std::vector<double> experts_of(const std::vector<Matrix<double>>& all, const Range& held) {
  std::vector<double> values;
  for (int64_t e = held.begin; e < held.end(); ++e) {
    const auto& data = all[static_cast<size_t>(e)].data;
    values.insert(values.end(), data.begin(), data.end());
  }
  return values;
}

/// Each of the pass's results, by name, whether it is as good as one rank's.
std::map<std::string, testing::AssertionResult> judge(const Pass& got, const Whole& whole, const Mesh& mesh, const Range& held,
                                                      DType dtype) {
  const Range tokens = whole.tokens_of(mesh.world().rank());
  const Pass& one = whole.one;
  const MoeResult& exact = whole.exact;
  return {
      {"y", as_good(got.y, one.y.rows(tokens.begin, tokens.count), rows_of(exact.y, tokens), dtype)},
      {"dx", as_good(got.dx, one.dx.rows(tokens.begin, tokens.count), rows_of(exact.dx, tokens), dtype)},
      {"router", as_good(got.drouter, one.drouter, exact.drouter.data, dtype)},
      {"gate_up", as_good(got.dup, one.dup.rows(held.begin, held.count), experts_of(exact.dup, held), dtype)},
      {"down", as_good(got.ddown, one.ddown.rows(held.begin, held.count), experts_of(exact.ddown, held), dtype)},
  };
}

void scale(const Tensor& tensor, float factor) {
  for (float& value : tensor.span<float>()) value *= factor;
}

void check_block(const Mesh& mesh, const SpreadCase& c, Precision precision, bool loop) {
  CpuContext alone(1, precision), ctx(1, precision);
  const Whole whole(alone, c, mesh);
  ctx.mesh = &mesh;
  ctx.headroom = 1e9;
  const auto rank = static_cast<size_t>(mesh.world().rank());
  const Range held = dist::experts_of(c.experts, mesh.shape().ep, mesh.ep().rank());
  Block block(ctx, options_of(c, held, loop));
  const auto go = [&](bool local_stats) {
    return run_block(ctx, block, whole.x[rank], whole.dy[rank], whole.experts[rank], local_stats);
  };
  const DType dtype = ctx.activation_dtype();
  const Pass got = go(false), again = go(false);
  for (const auto& [name, result] : judge(got, whole, mesh, held, dtype)) EXPECT_TRUE(result) << name;
  EXPECT_TRUE(same_bits(got.y, again.y) && same_bits(got.dx, again.dx) && same_bits(got.drouter, again.drouter));
  EXPECT_TRUE(same_bits(got.dup, again.dup) && same_bits(got.ddown, again.ddown));

  // Controls: gradients of experts halved; statistics of this rank alone.
  const bool trained = norm_of(got.dup) > 0;
  scale(got.dup, 0.5F);
  EXPECT_EQ(static_cast<bool>(judge(got, whole, mesh, held, dtype).at("gate_up")), !trained);
  const bool alone_has_all = whole.x[rank].dim(0) == whole.one.y.dim(0);
  const Pass local = go(true);
  if (precision == Precision::kF32 && c.sizes == Sizes::kRagged && !alone_has_all) {
    EXPECT_FALSE(judge(local, whole, mesh, held, dtype).at("router"));
  }
}

TEST_P(SpreadMoe, IsTheBlockOfOneRank) {
  run([](Communicator& world) {
    for (const SpreadCase& c : spread_cases())
      for (const Precision precision : {Precision::kF32, Precision::kBF16})
        for (const bool loop : {false, true})
          for_meshes(world, c.experts, [&](const Mesh& mesh) { check_block(mesh, c, precision, loop); });
  });
}

TEST_P(SpreadMoe, HoldsNoOtherRanksExperts) {
  run([](Communicator& world) {
    for_meshes(world, 5, [&](const Mesh& mesh) {
      CpuContext ctx;
      ctx.mesh = &mesh;
      const SpreadCase c{.experts = 5, .top_k = 2};
      const Range held = dist::experts_of(5, mesh.shape().ep, mesh.ep().rank());
      Block block(ctx, options_of(c, held, false));
      const int64_t elements = 5 * kHidden + held.count * 3 * kIntermediate * kHidden;
      EXPECT_GE(block.arena->in_use(), 2 * 4 * elements);  // masters and gradients
      EXPECT_LE(block.arena->in_use(), 2 * (4 * elements + 3 * Arena::kAlignment));
      // What they start with is theirs of the whole model's.
      CpuContext other;
      Block all(other, options_of(c, std::nullopt, false));
      for (size_t i : {size_t{1}, size_t{2}})
        EXPECT_TRUE(
            same_bits(block.parameters.entries()[i].master, all.parameters.entries()[i].master.rows(held.begin, held.count)));
    });
  });
}

TEST_P(SpreadMoe, RefusesExpertsThatTheMeshPutsElsewhere) {
  run([](Communicator& world) {
    const Mesh mesh(world, {1, world.size()});
    CpuContext ctx;
    ctx.mesh = &mesh;
    const SpreadCase c{.experts = 8, .top_k = 2};
    Block block(ctx, options_of(c, Range{1, 1}, false));
    const Tensor x = random_tensor(ctx, {3, kHidden}, DType::kF32, 1);
    nn::Saved saved;
    EXPECT_THAT(error_of([&] { block.moe.forward(ctx, x, saved, {}, {}); }), HasSubstr("by the mesh it should hold"));
  });
}

}  // namespace
}  // namespace cistron::test
