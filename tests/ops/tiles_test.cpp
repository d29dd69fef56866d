#include "cistron/cpu/fast/tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "cistron/core/checked.h"
#include "cistron/core/rng.h"

namespace cistron::cpu {
namespace {

// Sixteen rows a block, `depth` words of B; what lies behind `depth` in a tile must not be read.
template <class B>
struct Operand {
  Operand(uint64_t seed, int64_t blocks, int64_t depth) : blocks(blocks), depth(depth) {
    const Rng rng(seed, 0);
    const B nan(std::nanf(""));
    tiles.resize(static_cast<size_t>(blocks * tile_step()) * kPerWord<B>, nan);
    panels.resize(static_cast<size_t>(blocks * depth * kLanes) * kPerWord<B>);
    for (int64_t row = 0; row < blocks * kLanes; ++row)
      for (int64_t k = 0; k < depth * kPerWord<B>; ++k) {
        const B value(static_cast<float>(rng.normal(static_cast<uint64_t>(row * 4096 + k))));
        values.push_back(static_cast<float>(value));
        const int64_t word = k / kPerWord<B>, block = row / kLanes, r = row % kLanes;
        const int64_t in_tile = block * tile_step() + word / kTileWords * kTile + r * kTileWords + word % kTileWords;
        const int64_t in_panel = (block * depth + word) * kLanes + r;
        tiles[static_cast<size_t>(in_tile * kPerWord<B> + k % kPerWord<B>)] = value;
        panels[static_cast<size_t>(in_panel * kPerWord<B> + k % kPerWord<B>)] = value;
      }
  }
  [[nodiscard]] int64_t tile_step() const { return ceil_div(depth, kTileWords) * kTile; }
  [[nodiscard]] Blocks<Word<B>> as_tiles() const { return {reinterpret_cast<const Word<B>*>(tiles.data()), tile_step(), blocks}; }
  [[nodiscard]] Blocks<Word<B>> as_panels() const {
    return {reinterpret_cast<const Word<B>*>(panels.data()), depth * kLanes, blocks};
  }
  [[nodiscard]] double value(int64_t row, int64_t k) const { return values[static_cast<size_t>(row * depth * kPerWord<B> + k)]; }

  int64_t blocks, depth;
  std::vector<B> tiles, panels;
  std::vector<float> values;
};

// |c - sum| <= terms x 2^-24 x sum of |a b|, and as much for the addition to what was there; the largest share of that.
template <bool add, class B>
double worst(const Operand<B>& a, const Operand<B>& b, double wrong = 0.0) {
  const int64_t columns = b.blocks * kLanes, ldc = columns + 3, terms = a.depth * kPerWord<B>;
  std::vector<float> c(static_cast<size_t>(a.blocks * kLanes * ldc), add ? 3.0F : std::nanf(""));
  [[maybe_unused]] const TileScope<B> tiles;
  multiply<add>(a.as_tiles(), b.as_panels(), a.depth, c.data(), ldc);
  double share = 0;
  for (int64_t i = 0; i < a.blocks * kLanes; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      double sum = add ? 3.0 : 0.0, size = sum;
      for (int64_t k = 0; k < terms; ++k) {
        sum += a.value(i, k) * b.value(j, k) * (1.0 + wrong);
        size += std::abs(a.value(i, k) * b.value(j, k));
      }
      const double got = c[static_cast<size_t>(i * ldc + j)];
      share =
          std::isnan(got) ? HUGE_VAL : std::max(share, std::abs(got - sum) / (static_cast<double>(terms + 1) * 0x1p-24 * size));
    }
  return share;
}

template <class B>
void check(int64_t a_blocks, int64_t b_blocks, int64_t depth) {
  SCOPED_TRACE(testing::Message() << a_blocks << " by " << b_blocks << " blocks, " << depth << " words");
  const Operand<B> a(1, a_blocks, depth), b(2, b_blocks, depth);
  EXPECT_LE((worst<false>(a, b)), 1.0);
  EXPECT_LE((worst<true>(a, b)), 1.0);
  EXPECT_GT((worst<false>(a, b, 0x1p-10)), 1.0);  // control
}

TEST(Tiles, ProductsAreTheSumsInAnyNumberOfBlocks) {
  for (const int64_t depth : {8, 16, 24, 40, 128})
    for (const auto& [a, b] : {std::pair<int64_t, int64_t>{1, 1}, {1, 3}, {1, 6}, {2, 1}, {5, 1}, {3, 2}}) {
      check<float>(a, b, depth);
      if constexpr (kHasBf16Words) check<bf16>(a, b, depth);
    }
}

}  // namespace
}  // namespace cistron::cpu
