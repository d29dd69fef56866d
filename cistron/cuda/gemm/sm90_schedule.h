#pragma once
// Which output tile comes when, on Hopper. Tiles are kTileM x tile_n; two blocks of a cluster make a pair of tiles that share one
// operand: two rows of tiles over the same columns (shared: B), or, in the last row where their number is odd, two columns of
// tiles (shared: A). Pairs are numbered so that those in flight lie in a square-like window and their operands in the L2 cache.
// Host and device: plain arithmetic, tested on the host.
#include <cstdint>

#ifdef __CUDACC__
#define CISTRON_HOST_DEVICE __host__ __device__
#else
#define CISTRON_HOST_DEVICE
#endif

namespace cistron::cuda::sm90 {

constexpr int kTileM = 128;

/// Pairs of rows of tiles that are swept together, columns outer: 8 x 256 rows against as many columns fill a wave of 66 pairs.
constexpr int kBandPairs = 8;

struct TilePair {
  int m, n;       // in tiles, of the cluster's first block
  bool shares_a;  // the second block takes (m, n + 1); otherwise (m + 1, n)
};

/// One expert's output in tiles.
struct TileGrid {
  int m_tiles, n_tiles;

  [[nodiscard]] CISTRON_HOST_DEVICE int pairs() const { return m_tiles / 2 * n_tiles + (m_tiles % 2) * ((n_tiles + 1) / 2); }

  [[nodiscard]] CISTRON_HOST_DEVICE TilePair at(int index) const {
    const int row_pairs = m_tiles / 2;
    if (index >= row_pairs * n_tiles) return {m_tiles - 1, 2 * (index - row_pairs * n_tiles), true};
    const int band = row_pairs <= kBandPairs ? 0 : index / (kBandPairs * n_tiles);
    const int first = band * kBandPairs;
    const int height = row_pairs - first < kBandPairs ? row_pairs - first : kBandPairs;
    const int rest = index - first * n_tiles;
    return {2 * (first + rest % height), rest / height, false};
  }
};

}  // namespace cistron::cuda::sm90
