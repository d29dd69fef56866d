// The walk of Hopper's blocks over the experts' tiles: every tile of every expert once, whoever takes it.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "cistron/cuda/gemm/sm90_schedule.h"

namespace cistron::test {
namespace {

using namespace cuda::sm90;

constexpr int kTileN = 192;
constexpr int kBlockK = 128;

struct Groups {
  std::vector<int> counts, starts;

  explicit Groups(std::vector<int> wanted) : counts(std::move(wanted)) {
    int at = 0;
    for (const int count : counts) {
      starts.push_back(at);
      at += (count + 127) / 128 * 128;
    }
  }
  [[nodiscard]] Extent extent(int m, int n, int sections, int k, bool skip_empty) const {
    return {.starts = starts.data(),
            .counts = counts.data(),
            .experts = static_cast<int>(counts.size()),
            .m = m,
            .n = n,
            .sections = sections,
            .k = k,
            .skip_empty = skip_empty};
  }
};

template <bool kRagged>
std::vector<int> ends_of(const Extent& extent) {
  std::vector<int> ends;
  int sum = 0;
  for (int e = 0; e < extent.experts; ++e) ends.push_back(sum += extent.pairs<kRagged>(extent.counts[e], kTileN));
  return ends;
}

/// How often each (expert, row, section, column) is stored by `clusters` clusters of two blocks.
template <bool kRagged>
std::map<std::tuple<int, int, int, int>, int> stored(const Extent& extent, const std::vector<int>& ends, int clusters) {
  std::map<std::tuple<int, int, int, int>, int> seen;
  for (int cluster = 0; cluster < clusters; ++cluster)
    for (int rank = 0; rank < 2; ++rank) {
      TileWalk<kRagged, kTileN, kBlockK> walk(extent, ends.data(), cluster, clusters, rank);
      for (Tile tile{}; walk.next(tile);) {
        const int depth = kRagged ? extent.counts[tile.expert] : extent.k;
        EXPECT_EQ(tile.k_blocks, (depth + kBlockK - 1) / kBlockK);
        EXPECT_EQ(tile.first_k, kRagged ? extent.starts[tile.expert] : 0);
        EXPECT_EQ(tile.n, tile.section * extent.n + tile.column);
        const int before = std::accumulate(extent.counts, extent.counts + tile.expert, 0);
        EXPECT_TRUE(kRagged || tile.packed == before + tile.row - extent.starts[tile.expert]);
        if (tile.rows > 0) ++seen[{tile.expert, tile.row, tile.section, tile.column}];
      }
    }
  return seen;
}

template <bool kRagged>
std::map<std::tuple<int, int, int, int>, int> wanted(const Extent& extent) {
  std::map<std::tuple<int, int, int, int>, int> all;
  for (int e = 0; e < extent.experts; ++e) {
    if (kRagged && extent.skip_empty && extent.counts[e] == 0) continue;
    const int first = kRagged ? 0 : extent.starts[e];
    for (int row = 0; row < (kRagged ? extent.m : extent.counts[e]); row += kTileM)
      for (int section = 0; section < extent.sections; ++section)
        for (int column = 0; column < extent.n; column += kTileN) all[{e, first + row, section, column}] = 1;
  }
  return all;
}

std::vector<int> random_counts(std::mt19937& generator) {
  std::vector<int> counts(1 + generator() % 70);
  for (int& count : counts) count = static_cast<int>(generator() % 3 == 0 ? 0 : generator() % 1000);
  return counts;
}

TEST(Sm90Walk, EveryTileOnceRowsByExpert) {
  std::mt19937 generator(1);
  for (int draw = 0; draw < 200; ++draw) {
    const Groups g(random_counts(generator));
    const int sections = 1 + static_cast<int>(generator() % 2);
    const Extent extent = g.extent(0, static_cast<int>(16 * (1 + generator() % 60)), sections, 640, false);
    const auto seen = stored<false>(extent, ends_of<false>(extent), 1 + static_cast<int>(generator() % 66));
    EXPECT_EQ(seen, wanted<false>(extent)) << "draw " << draw;
  }
}

TEST(Sm90Walk, EveryTileOnceContractionByExpert) {
  std::mt19937 generator(2);
  for (int draw = 0; draw < 200; ++draw) {
    const Groups g(random_counts(generator));
    const Extent extent = g.extent(static_cast<int>(16 * (1 + generator() % 60)), static_cast<int>(16 * (1 + generator() % 60)),
                                   1, 0, draw % 2 == 1);
    const auto seen = stored<true>(extent, ends_of<true>(extent), 1 + static_cast<int>(generator() % 66));
    EXPECT_EQ(seen, wanted<true>(extent)) << "draw " << draw;
  }
}

TEST(Sm90Walk, NothingToDo) {
  const Groups g({0, 0, 0});
  const Extent rows = g.extent(0, 256, 1, 128, false);
  EXPECT_TRUE(stored<false>(rows, ends_of<false>(rows), 3).empty());
  const Extent skipped = g.extent(256, 256, 1, 0, true);
  EXPECT_TRUE(stored<true>(skipped, ends_of<true>(skipped), 3).empty());
  // Overwriting, each expert's zeros are written.
  const Extent zeros = g.extent(256, 192, 1, 0, false);
  EXPECT_EQ(stored<true>(zeros, ends_of<true>(zeros), 3).size(), 6U);
}

TEST(Sm90Walk, AWrongTableIsNoticed) {
  const Groups g({300, 200, 513});
  const Extent extent = g.extent(0, 400, 1, 640, false);
  auto ends = ends_of<false>(extent);
  ++ends[1];
  EXPECT_NE(stored<false>(extent, ends, 7), wanted<false>(extent));
}

}  // namespace
}  // namespace cistron::test
