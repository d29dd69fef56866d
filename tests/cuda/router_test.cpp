#include <limits>
#include <set>

#include "tests/cuda/support.h"
#include "tests/ops/router_support.h"

namespace cistron::test {
namespace {

class CudaRouter : public OnCard {
 protected:
  Routed poisoned_routed(int64_t tokens, int64_t top_k, int64_t experts) {
    Routed r;
    r.probs = poisoned_there({tokens, experts}, DType::kF32);
    r.lse = poisoned_there({tokens}, DType::kF32);
    r.experts = poisoned_there({tokens, top_k}, DType::kI32);
    r.weights = poisoned_there({tokens, top_k}, DType::kF32);
    return r;
  }
  Routed route_there(const Tensor& logits, int64_t top_k) {
    const auto results = twice([&] {
      const Routed r = poisoned_routed(logits.dim(0), top_k, logits.dim(1));
      ops::router_forward(cuda_, {device(logits), r.probs, r.lse, r.experts, r.weights});
      return std::vector{r.probs, r.lse, r.experts, r.weights};
    });
    Routed r;
    r.probs = results[0], r.lse = results[1], r.experts = results[2], r.weights = results[3];
    return r;
  }
  static std::vector<RouterCase> cases() {
    auto cases = router_cases();
    for (int64_t experts : {64, 100, 256, 384, 512, 700}) cases.push_back({61, 8, experts, 2.0});
    cases.push_back({20, 40, 48});  // more choices than lanes
    return cases;
  }
};

TEST_F(CudaRouter, ForwardMatchesTheReference) {
  for (const auto& [tokens, top_k, experts, scale] : cases()) {
    const Tensor logits = random_tensor(cpu_, {tokens, experts}, DType::kF32, 1, scale);
    const Routed got = route_there(logits, top_k);
    EXPECT_TRUE(forward_within(got, logits)) << tokens << " x " << experts;
    if (tokens == 0 || top_k == experts || scale > 10) continue;      // the chosen ones are all there is
    EXPECT_FALSE(forward_within(got, logits, /*normalised=*/false));  // control
  }
}

TEST_F(CudaRouter, TiesGoToTheLowestExpert) {
  const Tensor logits = tensor_of(cpu_, {3, 5}, DType::kF32, {1, 1, 1, 1, 1, 0, 2, 0, 2, 2, 3, 0, 0, 0, 1});
  EXPECT_EQ(ints(route_there(logits, 3).experts), (std::vector<int32_t>{0, 1, 2, 1, 3, 4, 0, 4, 1}));
  // ties across lanes and registers
  const Tensor many = tensor_of(cpu_, {1, 130}, DType::kF32, std::vector<double>(130, 0.5));
  many.span<float>()[97] = many.span<float>()[1] = 2.0F;
  EXPECT_EQ(ints(route_there(many, 5).experts), (std::vector<int32_t>{1, 97, 0, 2, 3}));
}

TEST_F(CudaRouter, ProbsMayAliasLogits) {
  const Tensor logits = random_tensor(cpu_, {20, 80}, DType::kF32, 2), alias = device(logits);
  const Routed apart = route_there(logits, 2), r = poisoned_routed(20, 2, 80);
  ops::router_forward(cuda_, {alias, alias, r.lse, r.experts, r.weights});
  EXPECT_TRUE(same_bits(host(alias), apart.probs));
  EXPECT_TRUE(same_bits(host(r.weights), apart.weights));
}

TEST_F(CudaRouter, ReplayTakesTheExpertsAsGiven) {
  const Tensor logits = random_tensor(cpu_, {20, 8}, DType::kF32, 3);
  const Routed first = route_there(logits, 2), again = poisoned_routed(20, 2, 8);
  ops::router_forward(cuda_, {device(logits), again.probs, again.lse, device(first.experts), again.weights, true});
  EXPECT_TRUE(same_bits(host(again.weights), first.weights));
  const Tensor others = random_choices(cpu_, 20, 2, 8, Choice::kRandom, 4), given = device(others);
  ops::router_forward(cuda_, {device(logits), again.probs, again.lse, given, again.weights, true});
  EXPECT_TRUE(same_bits(host(given), others));
  EXPECT_FALSE(same_bits(host(again.weights), first.weights));
}

TEST_F(CudaRouter, NaNAndInfinityGiveTheCpusExperts) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  const Tensor logits = tensor_of(cpu_, {5, 4}, DType::kF32, {kNaN, 1, 2,     3,     kNaN,  kNaN,  kNaN,  kNaN, kInf,  0,
                                                              kInf, 1, -kInf, -kInf, -kInf, -kInf, -kInf, 0,    -kInf, 1});
  for (int64_t k : {1, 2, 4}) {
    const Routed there = route_there(logits, k), here = route(cpu_, logits, k);
    EXPECT_TRUE(same_bits(there.experts, here.experts));
    const auto got = to_double(there.probs), want = to_double(here.probs);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), std::isnan(want[i])) << i;
  }
}

TEST_F(CudaRouter, StatsAddUp) {
  for (const auto& [tokens, top_k, experts, scale] : cases()) {
    const Routed r = route(cpu_, random_tensor(cpu_, {tokens, experts}, DType::kF32, 5, scale), top_k);
    auto want = stats_of(to_matrix(r.probs), to_double(r.lse), choices(r.experts));
    const Tensor ones = tensor_of(cpu_, {2 * experts + 3}, DType::kF64, std::vector<double>(want.size(), 1.0));
    const Tensor got = twice([&] {
                         const Tensor stats = device(ones);
                         ops::router_stats(cuda_, {device(r.probs), device(r.lse), device(r.experts), stats});
                         return std::vector{stats};
                       }).front();
    std::vector<double> bound;
    for (double& x : want) {
      x += 1;
      bound.push_back(x * static_cast<double>(tokens * experts + 1) * 0x1p-52);
    }
    bound[bound.size() - 2] += 0x1p-23 * want[want.size() - 2];  // logarithms in f32
    EXPECT_TRUE(within(got, want, bound)) << tokens << " x " << experts;
    want[0] += 1;
    EXPECT_FALSE(within(got, want, bound));
  }
}

TEST_F(CudaRouter, BackwardMatchesTheReference) {
  for (const RouterCase& c : cases())
    for (const auto& [aux, z] : {std::pair(0.0F, 0.0F), std::pair(0.5F, 0.1F)}) {
      const RouterBackwardCase b(cpu_, c, aux, z);
      const Tensor got = twice([&] {
                           const Tensor dlogits = poisoned_there(b.logits.shape(), DType::kF32);
                           ops::router_backward(cuda_, {.probs = device(b.routed.probs),
                                                        .lse = device(b.routed.lse),
                                                        .experts = device(b.routed.experts),
                                                        .weights = device(b.routed.weights),
                                                        .dweights = device(b.upstream),
                                                        .stats = device(b.stats),
                                                        .aux_coefficient = aux,
                                                        .z_coefficient = z,
                                                        .dlogits = dlogits});
                           return std::vector{dlogits};
                         }).front();
      const auto reference = [&](const auto& losses, const auto& dweights) {
        return cpu::ref::router_backward(to_matrix(b.logits), choices(b.routed.experts), dweights, losses).data;
      };
      EXPECT_TRUE(within(got, reference(b.losses, b.dweights), b.bound())) << c.tokens << " x " << c.experts;
      if (c.tokens == 0 || c.experts == 1 || aux == 0) continue;
      auto losses = b.losses;  // controls
      losses.aux_coefficient = 0;
      EXPECT_FALSE(within(got, reference(losses, b.dweights), b.bound())) << c.tokens << " x " << c.experts;
      losses = b.losses;
      losses.z_coefficient = 0;
      EXPECT_FALSE(within(got, reference(losses, b.dweights), b.bound())) << c.tokens << " x " << c.experts;
    }
}

}  // namespace
}  // namespace cistron::test
