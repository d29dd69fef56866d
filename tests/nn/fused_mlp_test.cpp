// The fused MLP against the same operations one by one.
#include "cistron/nn/fused_mlp.h"

#include <gmock/gmock.h>

#include "cistron/nn/local_parameters.h"
#include "tests/ops/routing_support.h"

namespace cistron::nn {
namespace {

constexpr int64_t kHidden = 48, kIntermediate = 272;  // a whole tile of columns, and a part of one

struct Biases {
  Bias gate_up = Bias::kNone, down = Bias::kNone;
};
constexpr Biases kAllBiases[] = {
    {}, {Bias::kPlain, Bias::kScaled}, {Bias::kPlain}, {Bias::kNone, Bias::kScaled}, {Bias::kPlain, Bias::kPlain}};

Sequential mlp(int64_t experts, Biases biases = {}) {
  return Sequential{
      Gather{},
      GroupedLinear{{.experts = experts, .in = kHidden, .out = 2 * kIntermediate, .name = "gate_up", .bias = biases.gate_up}},
      ScaledSwiGlu{},
      GroupedLinear{{.experts = experts, .in = kIntermediate, .out = kHidden, .name = "down", .bias = biases.down}}, Combine{}};
}

struct Results {
  std::vector<Tensor> tensors;  // y, dx, dweights, twice; the parameters' gradients
  int64_t saved = 0;            // bytes
};

Results run(Context& ctx, const Sequential& mlp, const ops::Groups& groups) {
  LocalParameters parameters(mlp.parameters(), ctx.precision, {.parameters = ctx.arena, .gradients = ctx.arena});
  ctx.parameters = &parameters;
  parameters.initialise(ctx, 5);
  for (auto& entry : parameters.entries())
    if (entry.parameter->name.ends_with("bias"))
      entry.master = test::random_tensor(ctx, entry.master.shape(), DType::kF32, 8, 0.02);
  const Shape tokens{groups.num_tokens(), kHidden};
  Results results;
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {  // the second one accumulates
    Saved saved;
    const Tensor x = test::random_tensor(ctx, tokens, ctx.activation_dtype(), 6 + micro_batch, 3.0);
    const Tensor y = mlp.forward(ctx, x, groups, saved);
    results.saved = saved.bytes();
    const auto [dx, dweights] = mlp.backward(ctx, test::random_tensor(ctx, tokens, x.dtype(), 9), saved);
    EXPECT_TRUE(saved.empty());
    for (const Tensor& t : {y, dx, dweights}) results.tensors.push_back(t);
  }
  parameters.check_all_have_grads();
  for (const auto& entry : parameters.entries()) results.tensors.push_back(entry.grad);
  return results;
}

/// Of the whole tensor: the norm of the difference over the norm.
double distance(const Tensor& got, const Tensor& want) {
  const auto a = test::to_double(got), b = test::to_double(want);
  double difference = 0, norm = 1e-300;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

TEST(FusedMlp, IsTheSameAsOneByOneAndKeepsLess) {
  for (const Precision precision : {Precision::kF32, Precision::kBF16})
    for (size_t i = 0; const auto& c : test::routing_cases()) {
      test::CpuContext ctx(2, precision);
      const Sequential experts = mlp(c.experts, kAllBiases[i++ % std::size(kAllBiases)]);
      const ops::Groups groups = test::groups_of(ctx, c, 1);
      const Results fused = run(ctx, experts, groups);
      ctx.fuse = false;
      const Results unfused = run(ctx, experts, groups);
      // The same roundings in the same places; only sums of dweights, whose terms cancel, go in another order.
      ASSERT_EQ(fused.tensors.size(), unfused.tensors.size());
      for (size_t i = 0; i < fused.tensors.size(); ++i)
        EXPECT_LE(distance(fused.tensors[i], unfused.tensors[i]), i == 2 || i == 5 ? 1e-4 : 1e-6) << i;
      EXPECT_LT(fused.saved, unfused.saved);
      // control: the weights' gradients of one micro-batch are not those of two
      EXPECT_GT(distance(fused.tensors[0], fused.tensors[3]), 0.1);
    }
}

TEST(FusedMlp, KeepsItsInputAndTheFirstProduct) {
  Context ctx = test::meta_context(Precision::kBF16);
  const Sequential experts = mlp(8);
  LocalParameters parameters(experts.parameters(), ctx.precision, {.parameters = ctx.arena, .gradients = ctx.arena});
  ctx.parameters = &parameters;
  const ops::Groups groups = ops::empty_groups(ctx, 100, 2, 8);
  Saved groups_alone, saved;
  groups_alone.push("groups", groups);
  experts.forward(ctx, ctx.empty({100, kHidden}), groups, saved);
  EXPECT_EQ(saved.bytes() - groups_alone.bytes(), 2 * (100 * kHidden + 200 * 2 * kIntermediate));
}

}  // namespace
}  // namespace cistron::nn
