#pragma once
// Which tile of which expert comes when. Pure functions of numbers, the same on host and device (constexpr).
// Blocks take tiles blockIdx, blockIdx + gridDim, ...; expert by expert, and within one in bands of rows, so that the blocks that
// run together read few rows and few columns over and over from L2.
#include <cstdint>

namespace cistron::cuda {

struct TilePlace {
  int32_t m = 0;
  int32_t n = 0;
};

constexpr int32_t kBandTiles = 16;

/// Tile number `index` of m_tiles x n_tiles: bands of 16 tile rows, within a band column by column.
constexpr TilePlace place_of(int32_t index, int32_t m_tiles, int32_t n_tiles) {
  const int32_t band = index / (kBandTiles * n_tiles);
  const int32_t left = m_tiles - band * kBandTiles;
  const int32_t height = left < kBandTiles ? left : kBandTiles;
  const int32_t within = index - band * kBandTiles * n_tiles;
  return {band * kBandTiles + within % height, within / height};
}

/// Walks the tiles of all experts in order; counts may be anything, 0 included.
struct ExpertWalk {
  int32_t expert = 0;
  int32_t first = 0;  // number of the expert's first tile

  /// Moves to the expert that holds tile `index`; false past the last one. Indices may only grow.
  template <class TilesOf>
  constexpr bool advance(int32_t index, int32_t experts, TilesOf tiles_of) {
    while (expert < experts) {
      const int32_t next = first + tiles_of(expert);
      if (index < next) return true;
      first = next;
      ++expert;
    }
    return false;
  }
};

}  // namespace cistron::cuda
