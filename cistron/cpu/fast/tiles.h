#pragma once
// Products of blocks that stay in cache. a comes in tiles, sixteen rows by sixteen words of the contraction; b in panels
// (words.h): each is what a tile register of AMX holds, where this build has them, and elsewhere sixteen vector registers hold
// the sums.
#include <algorithm>
#include <type_traits>
#include <variant>

#include "cistron/cpu/fast/amx.h"
#include "cistron/cpu/fast/words.h"

namespace cistron::cpu {

constexpr int64_t kTileWords = 16;
constexpr int64_t kTile = kLanes * kTileWords;  // words of a tile: tile[row][word]

/// Blocks of sixteen rows (tiles, one after another along the contraction) or of sixteen columns (a panel), `step` words apart.
template <class W>
struct Blocks {
  const W* data;
  int64_t step = 0, count = 1;
  [[nodiscard]] const W* at(int64_t i) const { return data + i * step; }
  [[nodiscard]] Blocks some(int64_t first, int64_t most) const { return {at(first), step, std::min(most, count - first)}; }
};

/// For as long as products of words of B are made: they need the thread's tile registers, which other libraries set as they like.
template <class B>
using TileScope = std::conditional_t<kHasTiles && !std::is_same_v<B, float>, amx::Scope, std::monostate>;

// A register of columns, and as many rows at once as there are registers for.
#ifdef __AVX512F__
using Columns = F16;
constexpr int64_t kRowsAtOnce = 16;
#else
using Columns = float __attribute__((vector_size(32)));  // NOLINT(modernize-use-using)
constexpr int64_t kRowsAtOnce = 8;
#endif

/// c[16, 16] = (or +=) a block of a by a block of b.
template <bool add, class W>
void multiply_block(const W* a, const W* b, int64_t depth, float* c, int64_t ldc) {
  constexpr int64_t kColumns = sizeof(Columns) / sizeof(float);
  for (int64_t part = 0; part < kLanes * kLanes; part += kRowsAtOnce * kColumns) {
    const int64_t first = part / kLanes / kRowsAtOnce * kRowsAtOnce, column = part / kRowsAtOnce % kLanes;
    Columns sums[kRowsAtOnce] = {};
    for (int64_t tile = 0; tile < depth; tile += kTileWords) {
      const W *rows = a + tile * kLanes + first * kTileWords, *columns = b + tile * kLanes + column;
      for (int64_t k = 0; k < std::min(kTileWords, depth - tile); ++k) {
#pragma GCC unroll 16
        for (int64_t r = 0; r < kRowsAtOnce; ++r) sums[r] = add_product(sums[r], rows[r * kTileWords + k], columns + k * kLanes);
      }
    }
#pragma GCC unroll 16
    for (int64_t r = 0; r < kRowsAtOnce; ++r) {
      float* to = c + (first + r) * ldc + column;
      Columns after = sums[r];
      if constexpr (add) {
        std::memcpy(&after, to, sizeof(after));
        after += sums[r];
      }
      std::memcpy(to, &after, sizeof(after));
    }
  }
}

/// c[16 i + r, 16 j + s] = (or +=) the sum over k < depth of row r of a's block i by column s of b's block j, k = 0, 1, ...;
/// depth is a multiple of eight.
template <bool add, class W>
void multiply(const Blocks<W>& a, const Blocks<W>& b, int64_t depth, float* c, int64_t ldc) {
  for (int64_t i = 0; i < a.count; ++i)
    for (int64_t j = 0; j < b.count; ++j) multiply_block<add>(a.at(i), b.at(j), depth, c + kLanes * (i * ldc + j), ldc);
}

#ifdef __AMX_BF16__
/// With tile registers: four blocks of a by one of b, or one by four.
template <bool add>
void multiply(const Blocks<uint32_t>& a, const Blocks<uint32_t>& b, int64_t depth, float* c, int64_t ldc) {
  const bool down = a.count > 1;
  for (int64_t i = 0; i < a.count; i += down ? amx::kSums : 1)
    for (int64_t j = 0; j < b.count; j += down ? 1 : amx::kSums) {
      const auto rows = a.some(i, down ? amx::kSums : 1), columns = b.some(j, down ? 1 : amx::kSums);
      amx::multiply<add>({rows.data, down ? rows.step : 0}, {columns.data, down ? 0 : columns.step},
                         {c + kLanes * (i * ldc + j), ldc, down ? kLanes * ldc : kLanes}, down ? rows.count : columns.count,
                         depth);
    }
}
#endif

}  // namespace cistron::cpu
