#pragma once
// Tokens and choices of experts on the ranks of a mesh, the same functions of a seed everywhere: each rank knows all others'.
#include <algorithm>
#include <utility>

#include "cistron/dist/expert_exchange.h"
#include "tests/dist/support.h"
#include "tests/ops/routing_support.h"

namespace cistron::test {

enum class Skew { kEven, kAllToFirstRank, kNoneToLastRank };
enum class Sizes { kRagged, kOneEach, kOnlyRankZero, kNone };

struct SpreadCase {
  int64_t experts, top_k;
  Skew skew = Skew::kEven;
  Sizes sizes = Sizes::kRagged;
};

inline std::vector<SpreadCase> spread_cases() {
  return {{8, 2},
          {5, 3},
          {7, 1, Skew::kEven, Sizes::kOneEach},
          {8, 2, Skew::kAllToFirstRank},
          {8, 2, Skew::kNoneToLastRank},
          {5, 2, Skew::kAllToFirstRank, Sizes::kOnlyRankZero},
          {7, 7},
          {8, 3, Skew::kEven, Sizes::kNone}};
}

/// Every mesh over these ranks, none with more expert-parallel ranks than experts.
template <class F>
void for_meshes(dist::Communicator& world, int64_t experts, F&& f) {
  for (int ep = 1; ep <= world.size(); ++ep) {
    if (world.size() % ep != 0 || ep > experts) continue;
    const dist::Mesh mesh(world, {world.size() / ep, ep});
    SCOPED_TRACE(dist::describe(mesh.shape(), experts));
    f(mesh);
  }
}

inline int64_t tokens_of(const SpreadCase& c, int rank, uint64_t seed) {
  switch (c.sizes) {
    case Sizes::kRagged:
      return random_size(seed, static_cast<uint64_t>(rank)) % 50;
    case Sizes::kOneEach:
      return 1;
    case Sizes::kOnlyRankZero:
      return rank == 0 ? 33 : 0;
    case Sizes::kNone:
      return 0;
  }
  return 0;
}

/// [T, k] i32 of one rank.
inline Tensor choices_of(const Context& ctx, const SpreadCase& c, int ep, int rank, uint64_t seed) {
  int64_t among = c.experts;
  if (c.skew == Skew::kAllToFirstRank) among = dist::experts_of(c.experts, ep, 0).count;
  if (c.skew == Skew::kNoneToLastRank) among = dist::experts_of(c.experts, ep, ep - 1).begin;
  const int64_t tokens = tokens_of(c, rank, seed);
  return random_choices(ctx, tokens, c.top_k, std::clamp(among, c.top_k, c.experts), Choice::kRandom,
                        seed + static_cast<uint64_t>(rank));
}

}  // namespace cistron::test
