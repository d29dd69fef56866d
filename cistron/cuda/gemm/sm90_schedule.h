#pragma once
// Which output tile comes when, on Hopper. Tiles are kTileM x tile_n; two blocks of a cluster make a pair of tiles that share one
// operand: two rows of tiles over the same columns (shared: B), or, in the last row where their number is odd, two columns of
// tiles (shared: A). Pairs are numbered so that those in flight lie in a square-like window and their operands in the L2 cache.
// Host and device: plain arithmetic, tested on the host.
//
// A grouped product, for each expert e:
//   rows by expert:         out[r, n] = sum over k of A[r, k] B[e](n, k)      r in the expert's segment; k < K
//   contraction by expert:  out[e, m, n] = sum over r of A(m, r) B(n, r)      r in the expert's segment (wgrad; `kRagged`)
// `tile_n` are columns of out, as the epilogue counts them: fewer than B has rows in a tile where an epilogue makes one column of
// two (SwiGLU: of gate's and up's).
// Numbers are 32-bit: the launcher refuses more.
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

/// What there is to multiply.
struct Extent {
  const int32_t* starts;  // null: one group from row 0 on, of dense_rows rows
  const int32_t* counts;
  int experts;
  int dense_rows;
  int m;            // rows of out, where the contraction is by expert
  int n;            // columns of a section of out
  int sections;     // parts of the columns (gate, up) in which tiles are counted afresh, so that none straddles two
  int k;            // contraction, where the rows are by expert
  bool skip_empty;  // contraction by expert: leave the outputs of experts without rows alone

  [[nodiscard]] CISTRON_HOST_DEVICE int start_of(int expert) const { return starts == nullptr ? 0 : starts[expert]; }
  [[nodiscard]] CISTRON_HOST_DEVICE int rows_of(int expert) const { return counts == nullptr ? dense_rows : counts[expert]; }

  [[nodiscard]] CISTRON_HOST_DEVICE int column_tiles(int tile_n) const { return sections * ((n + tile_n - 1) / tile_n); }

  /// Pairs of tiles of an expert with this many rows: none for none, unless the contraction is by expert (zeros are stored).
  template <bool kRagged>
  [[nodiscard]] CISTRON_HOST_DEVICE int pairs(int count, int tile_n) const {
    if (kRagged && skip_empty && count == 0) return 0;
    return TileGrid{((kRagged ? m : count) + kTileM - 1) / kTileM, column_tiles(tile_n)}.pairs();
  }
};

/// One block's tile.
struct Tile {
  int expert;   // below 0: there are no more
  int row;      // first row, of A and of out
  int rows;     // from there to the last that counts, also past this tile; none where the tile is not stored
  int packed;   // the first row's place in a packed tensor, where the rows are by expert
  int n;        // first row of B, of its first box
  int section;  // of out's columns
  int column;   // first of out, in its section
  int first_k;  // where the contraction starts
  int k_blocks;
  bool shares_a;
};

/// The tiles of one block, in order. `ends[e]`: pairs of tiles up to and including expert e.
template <bool kRagged, int kTileN, int kBlockK>
class TileWalk {
 public:
  CISTRON_HOST_DEVICE TileWalk(const Extent& extent, const int* ends, int cluster, int clusters, int rank)
      : extent_(extent), ends_(ends), pair_(cluster), clusters_(clusters), rank_(rank) {}

  /// Both blocks of a cluster get tiles of one expert, with as many K blocks: they fill each other's stages.
  CISTRON_HOST_DEVICE bool next(Tile& tile) {
    if (pair_ >= ends_[extent_.experts - 1]) return false;
    find_expert();
    const int m = kRagged ? extent_.m : count_;
    const int n_tiles = extent_.column_tiles(kTileN);
    const TilePair at = TileGrid{(m + kTileM - 1) / kTileM, n_tiles}.at(pair_ - (expert_ == 0 ? 0 : ends_[expert_ - 1]));
    const int local = (at.m + (at.shares_a ? 0 : rank_)) * kTileM;
    const int wanted = at.n + (at.shares_a ? rank_ : 0);
    const int n = wanted < n_tiles ? wanted : n_tiles - 1;  // an odd tile's partner repeats it, and stores nothing
    const int section_tiles = n_tiles / extent_.sections;
    tile.expert = expert_;
    tile.row = (kRagged ? 0 : start_) + local;
    tile.rows = wanted < n_tiles ? m - local : 0;
    tile.packed = packed_ + local;
    tile.section = extent_.sections == 1 ? 0 : n / section_tiles;
    tile.column = (n - tile.section * section_tiles) * kTileN;
    tile.n = tile.section * extent_.n + tile.column;
    tile.first_k = kRagged ? start_ : 0;
    tile.k_blocks = ((kRagged ? count_ : extent_.k) + kBlockK - 1) / kBlockK;
    tile.shares_a = at.shares_a;
    pair_ += clusters_;
    return true;
  }

 private:
  /// Reads global memory only where an expert begins.
  CISTRON_HOST_DEVICE void find_expert() {
    if (expert_ >= 0 && pair_ < ends_[expert_]) return;
    do {
      packed_ += count_;
      count_ = extent_.rows_of(++expert_);
    } while (pair_ >= ends_[expert_]);
    start_ = extent_.start_of(expert_);
  }

  const Extent& extent_;
  const int* ends_;
  int pair_;
  int clusters_;
  int rank_;
  int expert_ = -1;
  int start_ = 0;
  int count_ = 0;
  int packed_ = 0;  // rows of the experts before
};

}  // namespace cistron::cuda::sm90
