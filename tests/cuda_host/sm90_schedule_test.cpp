// The order of output tiles on Hopper: every tile once, pairs that share an operand, windows that fit the L2 cache.
#include "cistron/cuda/gemm/sm90_schedule.h"

#include <gtest/gtest.h>

#include <set>

namespace cistron::test {
namespace {

using cuda::sm90::TileGrid;
using cuda::sm90::TilePair;

/// The tiles of a pair's two blocks; the second may not exist.
std::pair<std::pair<int, int>, std::pair<int, int>> tiles_of(const TilePair& pair) {
  return {{pair.m, pair.n}, pair.shares_a ? std::pair{pair.m, pair.n + 1} : std::pair{pair.m + 1, pair.n}};
}

/// How often each tile is made; `last` may be skipped, as a control.
std::multiset<std::pair<int, int>> all_tiles(const TileGrid& grid, int pairs) {
  std::multiset<std::pair<int, int>> seen;
  for (int i = 0; i < pairs; ++i) {
    const auto [first, second] = tiles_of(grid.at(i));
    seen.insert(first);
    if (second.second < grid.n_tiles) seen.insert(second);
  }
  return seen;
}

std::multiset<std::pair<int, int>> once_each(const TileGrid& grid) {
  std::multiset<std::pair<int, int>> wanted;
  for (int m = 0; m < grid.m_tiles; ++m)
    for (int n = 0; n < grid.n_tiles; ++n) wanted.emplace(m, n);
  return wanted;
}

TEST(Sm90Schedule, EveryTileOnce) {
  for (int m_tiles = 0; m_tiles < 40; ++m_tiles)
    for (int n_tiles = 1; n_tiles < 12; ++n_tiles) {
      const TileGrid grid{m_tiles, n_tiles};
      EXPECT_EQ(all_tiles(grid, grid.pairs()), once_each(grid)) << m_tiles << " x " << n_tiles;
    }
}

TEST(Sm90Schedule, ALostPairIsNoticed) {
  const TileGrid grid{7, 5};
  EXPECT_NE(all_tiles(grid, grid.pairs() - 1), once_each(grid));
}

TEST(Sm90Schedule, OnlyOddRowsShareA) {
  const TileGrid grid{5, 4};
  for (int i = 0; i < grid.pairs(); ++i) EXPECT_EQ(grid.at(i).shares_a, grid.at(i).m == 4);
}

TEST(Sm90Schedule, NoPairIsWastedOnOddRows) {
  EXPECT_EQ((TileGrid{1, 8}.pairs()), 4);
  EXPECT_EQ((TileGrid{1, 7}.pairs()), 4);
  EXPECT_EQ((TileGrid{17, 8}.pairs()), 8 * 8 + 4);
}

TEST(Sm90Schedule, AWaveCoversASquareWindow) {
  const TileGrid grid{64, 112};
  std::set<int> rows, columns;
  for (int i = 0; i < 66; ++i) {
    rows.insert(grid.at(i).m);
    columns.insert(grid.at(i).n);
  }
  EXPECT_EQ(rows.size(), 8U);
  EXPECT_EQ(columns.size(), 9U);
}

}  // namespace
}  // namespace cistron::test
