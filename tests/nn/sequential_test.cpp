#include "cistron/nn/sequential.h"

#include <gmock/gmock.h>

namespace cistron::nn {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

Sequential mlp() {
  return Sequential{Gather{}, GroupedLinear{{.experts = 8, .in = 256, .out = 512}}, ScaledSwiGlu{},
                    GroupedLinear{{.experts = 8, .in = 256, .out = 256}}, Combine{}};
}

TEST(Sequential, PlanShowsTheFusedMlp) {
  const std::string plan = mlp().plan(Context{});
  EXPECT_THAT(plan, HasSubstr("FusedMlp 8 x 256 -> 256 -> 256: fuses 5"));
  EXPECT_THAT(plan, Not(HasSubstr("not fused")));
}

std::string plan_with(Bias gate_up, Bias down) {
  const Sequential experts{Gather{}, GroupedLinear{{.experts = 8, .in = 256, .out = 512, .bias = gate_up}}, ScaledSwiGlu{},
                           GroupedLinear{{.experts = 8, .in = 256, .out = 256, .bias = down}}, Combine{}};
  return experts.plan(Context{});
}

TEST(Sequential, PlanShowsBiases) {
  using enum Bias;
  EXPECT_THAT(plan_with(kPlain, kScaled), HasSubstr("FusedMlp 8 x 256 -> 256 -> 256 with biases: fuses 5"));
  EXPECT_THAT(plan_with(kPlain, kNone), HasSubstr("256 with biases of gate and up: fuses 5"));
  EXPECT_THAT(plan_with(kNone, kPlain), HasSubstr("256 with biases of down: fuses 5"));
  EXPECT_THAT(plan_with(kNone, kNone), Not(HasSubstr("bias")));
}

TEST(Sequential, BiasesOfGateAndUpThatTheRoutingWeightsScaleRunUnfused) {
  const std::string plan = plan_with(Bias::kScaled, Bias::kScaled);
  EXPECT_THAT(plan, HasSubstr("GroupedLinear 8 x 256 -> 512 with biases times routing weights: one operation"));
  EXPECT_THAT(plan,
              HasSubstr("fused MLP: not fused, the routing weights scale the biases of gate and up, not those of down alone"));
}

TEST(Sequential, PlanWithoutFusing) {
  const std::string plan = mlp().plan(Context{.fuse = false});
  EXPECT_THAT(plan, HasSubstr("GroupedLinear 8 x 256 -> 512: one operation"));
  EXPECT_THAT(plan, HasSubstr("fused MLP: not fused, fusing is switched off"));
}

TEST(Sequential, NearMissesRunUnfused) {
  const Sequential other_width{Gather{}, GroupedLinear{{.experts = 8, .in = 256, .out = 512}}, ScaledSwiGlu{},
                               GroupedLinear{{.experts = 8, .in = 128, .out = 256}}, Combine{}};
  EXPECT_THAT(other_width.refusals(Context{}), Contains(HasSubstr("fused MLP: not fused, gate and up [8, 512, 256] and down")));
  const Sequential no_combine{Gather{}, GroupedLinear{{.experts = 8, .in = 256, .out = 512}}, ScaledSwiGlu{},
                              GroupedLinear{{.experts = 8, .in = 256, .out = 256}}};
  EXPECT_THAT(no_combine.plan(Context{}), HasSubstr("ScaledSwiGlu: one operation"));
}

TEST(Sequential, PlanNamesThePredicateThatRefused) {
  const Fusion never{.name = "planted",
                     .pattern = {OperationKind::kGroupedLinear, OperationKind::kScaledSwiGlu},
                     .refusal = [](const Context&, auto) { return "this card is too old"; },
                     .make = [](auto) { return std::make_unique<Gather>(); }};
  Sequential planted = mlp();
  planted.match(std::span(&never, 1));
  const std::string plan = planted.plan(Context{});
  EXPECT_THAT(plan, HasSubstr("planted: not fused, this card is too old"));
  EXPECT_EQ(plan.find("planted"), plan.rfind("planted"));  // the second linear is not followed by a SwiGLU
}

}  // namespace
}  // namespace cistron::nn
