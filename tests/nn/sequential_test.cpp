#include "cistron/nn/sequential.h"

#include <gmock/gmock.h>

namespace cistron::nn {
namespace {

using ::testing::HasSubstr;

Sequential mlp() {
  return Sequential{Gather{}, GroupedLinear{{.experts = 8, .in = 256, .out = 512}}, ScaledSwiGlu{},
                    GroupedLinear{{.experts = 8, .in = 256, .out = 256}}, Combine{}};
}

TEST(Sequential, PlanSaysThatTheTableIsEmpty) {
  const std::string plan = mlp().plan(Context{});
  EXPECT_THAT(plan, HasSubstr("GroupedLinear 8 x 256 -> 512: one operation"));
  EXPECT_THAT(plan, HasSubstr("table of fusions is empty"));
}

TEST(Sequential, PlanNamesThePredicateThatRefused) {
  const Fusion never{.name = "planted",
                     .pattern = {OperationKind::kGroupedLinear, OperationKind::kScaledSwiGlu},
                     .refusal = [](const Context&, auto) { return "this card is too old"; },
                     .make = nullptr};
  const std::string plan = mlp().plan(Context{}, std::span(&never, 1));
  EXPECT_THAT(plan, HasSubstr("planted: not fused, this card is too old"));
  EXPECT_EQ(plan.find("planted"), plan.rfind("planted"));  // the second linear is not followed by a SwiGLU
}

}  // namespace
}  // namespace cistron::nn
