#pragma once
// Tiles of the two kinds of product that linear layers need, on the calling thread. Tile bounds are the callers', never depend on
// the number of threads, and rows beyond a multiple of 16 are computed in a zero-padded block of 16: so a row meets the same
// arithmetic whatever rows are beside it (in bf16 beside its tile's), and oneDNN sees few distinct shapes. chain_rows.h, for w^T
// in f32 and for few rows in bf16, needs neither.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cistron/core/checked.h"
#include "cistron/core/context.h"

namespace cistron::cpu {

// Measured on two Zen 4 cores with operands out of cache, for contractions of 256 to 768: whole rows of y at once are worth 10 to
// 17% in bf16, and 5% in f32, over 256 columns; more rows 3%, and fewer cores could share them.
constexpr int64_t kRowTile = 128;
constexpr int64_t kColumnTile = 1024;
// Of dw: 5% under the best there. An expert's rows are fewer, experts are many, and larger tiles gain 9% more.
constexpr int64_t kOuterRows = 192, kOuterRowsOfExpert = 384;
constexpr int64_t kOuterColumns = 256;

/// Elements [begin, begin + count) of one dim.
struct Range {
  int64_t begin = 0, count = 0;
};

/// Tile number i when `total` is cut into tiles of `tile`.
inline Range tile_range(int64_t i, int64_t tile, int64_t total) { return {i * tile, std::min(tile, total - i * tile)}; }

/// y[rows, N] = x[rows, K] w, with w [K, N], or w^T, with w [N, K].
struct RowProduct {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  int64_t n = 0, k = 0;
  bool transpose_w = false, accumulate = false;
  DType in = DType::kF32, out = DType::kF32;
};
void row_product(const RowProduct& product, Range rows, Range columns);
/// All tiles of rows [0, rows).
void row_product(const Context& ctx, const RowProduct& product, int64_t rows);

/// dw[N, K] = dy[rows, N]^T x[rows, K]; zeros (or an untouched accumulator) without rows.
struct OuterProduct {
  void* dy = nullptr;
  void* x = nullptr;
  float* dw = nullptr;
  int64_t rows = 0, n = 0, k = 0;
  bool accumulate = false;
  DType in = DType::kF32;
};
void outer_product(const OuterProduct& product, Range n, Range k);
/// All tiles.
void outer_product(const Context& ctx, const OuterProduct& product);

}  // namespace cistron::cpu
