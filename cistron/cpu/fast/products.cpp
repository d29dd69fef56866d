#include "cistron/cpu/fast/products.h"

#include <cstring>
#include <vector>

#include "cistron/cpu/fast/chain_outer.h"
#include "cistron/cpu/fast/chain_rows.h"
#include "cistron/cpu/fast/onednn.h"

namespace cistron::cpu {

namespace {

constexpr int64_t kPadRows = 16;
// wgrad by oneDNN contracts over at most this many rows at a time.
constexpr int64_t kContractionTile = 576;

std::byte* at(void* base, int64_t element, DType dtype) { return static_cast<std::byte*>(base) + element * size_of(dtype); }

// This thread's scratch number `slot`, kept between calls.
std::byte* scratch(int slot, int64_t bytes) {
  thread_local std::vector<std::byte> buffers[2];
  auto& buffer = buffers[slot];
  if (static_cast<int64_t>(buffer.size()) < bytes) buffer.resize(static_cast<size_t>(bytes));
  return buffer.data();
}

struct Rows {
  std::byte* data;
  int64_t ld;  // elements
};
void copy_rows(Rows to, Rows from, int64_t rows, int64_t columns, DType dtype) {
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(at(to.data, r * to.ld, dtype), at(from.data, r * from.ld, dtype), static_cast<size_t>(columns * size_of(dtype)));
}

// `rows` < kPadRows rows with zeros behind them, in this thread's scratch.
std::byte* padded(int slot, Rows from, int64_t rows, int64_t columns, DType dtype) {
  const int64_t row_bytes = columns * size_of(dtype);
  std::byte* block = scratch(slot, kPadRows * row_bytes);
  copy_rows({block, columns}, from, rows, columns, dtype);
  std::memset(block + rows * row_bytes, 0, static_cast<size_t>((kPadRows - rows) * row_bytes));
  return block;
}

Gemm row_gemm(const RowProduct& p, int64_t rows, int64_t columns) {
  return {.m = rows,
          .n = columns,
          .k = p.k,
          .lda = p.k,
          .ldb = p.transpose_w ? p.k : p.n,
          .ldc = p.n,
          .transpose_b = p.transpose_w,
          .accumulate = p.accumulate,
          .in = p.in,
          .out = p.out};
}

// oneDNN is 5% faster in bf16 with a whole tile of rows, and far faster with AMX.
bool chains(const RowProduct& p, int64_t rows) {
  if (!kHasChainRows || !p.transpose_w) return false;
  return p.in == DType::kF32 || (kHasBf16Words && p.k % 2 == 0 && rows < kRowTile && !has_amx());
}

void chain_row_product(const RowProduct& p, Range rows, Range columns) {
  chain_rows({.x = at(p.x, rows.begin * p.k, p.in),
              .w = at(p.w, columns.begin * p.k, p.in),
              .y = at(p.y, rows.begin * p.n + columns.begin, p.out),
              .m = rows.count,
              .n = columns.count,
              .k = p.k,
              .ldy = p.n,
              .accumulate = p.accumulate,
              .in = p.in,
              .out = p.out});
}

// y's rows keep their leading dimension here: where that is large, oneDNN sums in another order.
void padded_row_product(const RowProduct& p, Range rows, Range columns, std::byte* w) {
  std::byte* x = padded(0, {at(p.x, rows.begin * p.k, p.in), p.k}, rows.count, p.k, p.in);
  const Rows target{at(p.y, rows.begin * p.n + columns.begin, p.out), p.n};
  const Rows y{scratch(1, kPadRows * p.n * size_of(p.out)), p.n};
  if (p.accumulate) {
    std::memset(y.data, 0, static_cast<size_t>(kPadRows * p.n * size_of(p.out)));
    copy_rows(y, target, rows.count, columns.count, p.out);
  }
  gemm(row_gemm(p, kPadRows, columns.count), x, w, y.data);
  copy_rows(target, y, rows.count, columns.count, p.out);
}

void chain_outer_product(const OuterProduct& p, Range n, Range k) {
  chain_outer({.dy = static_cast<const bf16*>(p.dy) + n.begin,
               .x = static_cast<const bf16*>(p.x) + k.begin,
               .dw = p.dw + n.begin * p.k + k.begin,
               .rows = p.rows,
               .n = n.count,
               .k = k.count,
               .lddy = p.n,
               .ldx = p.k,
               .lddw = p.k,
               .accumulate = p.accumulate});
}

void zero_tile(const OuterProduct& p, Range n, Range k) {
  for (int64_t i = n.begin; i < n.begin + n.count; ++i) std::fill_n(p.dw + i * p.k + k.begin, k.count, 0.0F);
}

}  // namespace

void row_product(const RowProduct& p, Range rows, Range columns) {
  if (rows.count == 0 || columns.count == 0) return;
  if (p.k == 0) {
    if (p.accumulate) return;
    for (int64_t r = rows.begin; r < rows.begin + rows.count; ++r)
      std::memset(at(p.y, r * p.n + columns.begin, p.out), 0, static_cast<size_t>(columns.count * size_of(p.out)));
    return;
  }
  if (chains(p, rows.count)) return chain_row_product(p, rows, columns);
  std::byte* w = at(p.w, p.transpose_w ? columns.begin * p.k : columns.begin, p.in);
  const int64_t whole = rows.count / kPadRows * kPadRows;
  if (whole > 0)
    gemm(row_gemm(p, whole, columns.count), at(p.x, rows.begin * p.k, p.in), w, at(p.y, rows.begin * p.n + columns.begin, p.out));
  if (whole < rows.count) padded_row_product(p, {rows.begin + whole, rows.count - whole}, columns, w);
}

void outer_product(const OuterProduct& p, Range n, Range k) {
  if constexpr (kHasBf16Words)
    if (p.in == DType::kBF16 && !has_amx()) return chain_outer_product(p, n, k);
  if (!p.accumulate && p.rows == 0) zero_tile(p, n, k);
  Gemm shape{.m = n.count,
             .n = k.count,
             .lda = p.n,
             .ldb = p.k,
             .ldc = p.k,
             .transpose_a = true,
             .accumulate = p.accumulate,
             .in = p.in};
  float* dw = p.dw + n.begin * p.k + k.begin;
  const int64_t whole = p.rows / kPadRows * kPadRows;
  const int64_t most = whole == 0 ? 0 : round_up(ceil_div(whole, ceil_div(whole, kContractionTile)), kPadRows);
  for (int64_t row = 0; row < whole; row += shape.k) {
    shape.k = std::min(most, whole - row);
    gemm(shape, at(p.dy, row * p.n + n.begin, p.in), at(p.x, row * p.k + k.begin, p.in), dw);
    shape.accumulate = true;
  }
  if (const int64_t rest = p.rows - whole; rest > 0) {
    const std::byte* dy = padded(0, {at(p.dy, whole * p.n + n.begin, p.in), p.n}, rest, n.count, p.in);
    const std::byte* x = padded(1, {at(p.x, whole * p.k + k.begin, p.in), p.k}, rest, k.count, p.in);
    shape.k = kPadRows;
    shape.lda = n.count;
    shape.ldb = k.count;
    gemm(shape, dy, x, dw);
  }
}

void row_product(const Context& ctx, const RowProduct& p, int64_t rows) {
  const int64_t row_tiles = ceil_div(rows, kRowTile), column_tiles = ceil_div(p.n, kColumnTile);
  ctx.parallel_for(row_tiles * column_tiles, [&](int64_t i) {
    row_product(p, tile_range(i / column_tiles, kRowTile, rows), tile_range(i % column_tiles, kColumnTile, p.n));
  });
}

void outer_product(const Context& ctx, const OuterProduct& p) {
  const int64_t n_tiles = ceil_div(p.n, kOuterRows), k_tiles = ceil_div(p.k, kOuterColumns);
  ctx.parallel_for(n_tiles * k_tiles, [&](int64_t i) {
    outer_product(p, tile_range(i / k_tiles, kOuterRows, p.n), tile_range(i % k_tiles, kOuterColumns, p.k));
  });
}

}  // namespace cistron::cpu
