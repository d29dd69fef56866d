// The portable products' tile order: every tile once, and never more than a band of rows apart.
#include "cistron/cuda/gemm/portable_schedule.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace cistron::cuda {
namespace {

TEST(PortableSchedule, EveryTileOnce) {
  for (const auto& [m, n] : {std::pair{1, 1}, {16, 5}, {17, 3}, {33, 1}, {5, 112}, {128, 112}}) {
    std::set<std::pair<int, int>> seen;
    for (int index = 0; index < m * n; ++index) {
      const TilePlace at = place_of(index, m, n);
      EXPECT_TRUE(at.m >= 0 && at.m < m && at.n >= 0 && at.n < n) << m << "x" << n << " " << index;
      EXPECT_EQ(at.m / kBandTiles, index / (kBandTiles * n));
      seen.insert({at.m, at.n});
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(m * n));
  }
}

TEST(PortableSchedule, WalksExpertsOfAnySize) {
  const std::vector<int> tiles = {0, 3, 0, 0, 1, 7, 0};
  for (const int stride : {1, 2, 5, 100}) {
    for (int first = 0; first < stride; ++first) {
      ExpertWalk walk;
      for (int index = first; index < 11; index += stride) {
        ASSERT_TRUE(walk.advance(index, 7, [&](int e) { return tiles[static_cast<size_t>(e)]; }));
        EXPECT_EQ(walk.expert, index < 3 ? 1 : index < 4 ? 4 : 5);
        EXPECT_EQ(walk.first, index < 3 ? 0 : index < 4 ? 3 : 4);
      }
      EXPECT_FALSE(walk.advance(11, 7, [&](int e) { return tiles[static_cast<size_t>(e)]; }));
    }
  }
}

}  // namespace
}  // namespace cistron::cuda
