#pragma once
// What attention's forward and backward share. A sequence's heads are copied into tiles and panels (tiles.h), zeros behind
// the last, so that a row's bits depend on its place in its sequence and on the sequence alone. Operands of the products are bf16
// where activations are and this build multiplies it, else f32; sums are f32. Scores are kept transposed, [keys, queries]:
// sixteen queries lie in the lanes of a vector, and a softmax never adds across lanes.
#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "cistron/core/checked.h"
#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/tiles.h"
#include "cistron/cpu/fast/vec_math.h"
#include "cistron/cpu/fast/words.h"
#include "cistron/ops/attention.h"

namespace cistron::cpu::attention {

constexpr int64_t kMostKeys = 256;                     // at once: sixteen queries' scores are half of a cache of 32 KiB
using I16 = int32_t __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)

/// On cache lines; keeps its size from one use to the next.
template <class T>
class Buffer {
 public:
  /// Uninitialised; count > 0.
  T* get(int64_t count) {
    lines_.resize(std::max(lines_.size(), static_cast<size_t>(ceil_div(count, kPerLine))));
    return lines_.data()->values;
  }
  T* zeros(int64_t count) { return std::fill_n(get(count), count, T{}) - count; }

 private:
  static constexpr int64_t kPerLine = 64 / int64_t{sizeof(T)};
  struct alignas(64) Line {
    T values[kPerLine];
  };
  std::vector<Line> lines_;
};

/// The columns of one head in a token-major array.
template <class T>
struct Head {
  T* data;     // first token of the sequence
  int64_t ld;  // elements from token to token
  int64_t dim;
  [[nodiscard]] T* row(int64_t token) const { return data + token * ld; }
};

template <class T>
Head<T> head_of(const Tensor& tensor, int64_t token, int64_t column, int64_t dim) {
  const int64_t ld = tensor.dim(1);
  return {tensor.data<T>() + token * ld + column, ld, dim};
}

inline int64_t query_column(const ops::AttentionShape& s, int64_t head) { return head * s.head_dim; }
inline int64_t key_column(const ops::AttentionShape& s, int64_t kv_head) { return (s.num_heads + kv_head) * s.head_dim; }
inline int64_t value_column(const ops::AttentionShape& s, int64_t kv_head) {
  return (s.num_heads + s.num_kv_heads + kv_head) * s.head_dim;
}

inline int64_t whole_panels(int64_t rows) { return round_up(rows, kLanes); }

template <class T, class B>
void copy_row(const T* from, int64_t count, B* to) {
  if constexpr (std::is_same_v<T, B>)
    std::copy_n(from, count, to);
  else
    for_lanes(count, [&](const Lanes& l) { l.store(to, l.load(from)); });
}

/// A row of a tile holds that many of the contraction.
template <class B>
constexpr int64_t kTileDepth = kTileWords * kPerWord<B>;

/// Words of a block of sixteen rows, in tiles, that are contracted over `depth`.
template <class B>
constexpr int64_t block_of_tiles(int64_t depth) {
  return ceil_div(depth, kTileDepth<B>) * kTile;
}

/// b, contracted over a head's columns: rows [first, first + rows) and zeros behind them as panels[row / 16][word][16]. Columns
/// are whole vectors: zeros behind the last.
template <class B, class T>
void pack_panels(const Head<T>& head, int64_t first, int64_t rows, Word<B>* panels) {
  const int64_t width = whole_panels(head.dim), words = width / kPerWord<B>;
  thread_local Buffer<B> copies;
  B* copy = copies.get(kLanes * width);
  for (int64_t r = 0; r < rows; r += kLanes, panels += words * kLanes) {
    std::fill_n(copy, kLanes * width, B(0.0F));
    for (int64_t i = 0; i < std::min(kLanes, rows - r); ++i) copy_row(head.row(first + r + i), head.dim, copy + i * width);
    for (int64_t k = 0; k < words; k += 4)
      transpose(reinterpret_cast<const float*>(copy) + k, words, reinterpret_cast<float*>(panels + k * kLanes));
  }
}

/// a, contracted over a head's columns: rows [first, first + rows) and zeros behind them as blocks[row / 16][tile].
template <class B, class T>
void pack_row_tiles(const Head<T>& head, int64_t first, int64_t rows, Word<B>* tiles) {
  for (int64_t r = 0; r < whole_panels(rows); ++r) {
    Word<B>* to = tiles + r / kLanes * block_of_tiles<B>(head.dim) + r % kLanes * kTileWords;
    for (int64_t d = 0; d < head.dim; d += kTileDepth<B>, to += kTile) {
      const int64_t count = r < rows ? std::min(kTileDepth<B>, head.dim - d) : 0;
      B* row = reinterpret_cast<B*>(to);
      std::fill_n(row + count, kTileDepth<B> - count, B(0.0F));
      if (count > 0) copy_row(head.row(first + r) + d, count, row);
    }
  }
}

/// b, contracted over rows: rows [first, first + rows) and zeros up to `most`, whole panels, as panels[column / 16][word][16];
/// words far apart in memory, of whole rows, would meet in few sets of the cache.
template <class B, class T>
void pack_rows(const Head<T>& head, int64_t first, int64_t rows, int64_t most, Word<B>* panels) {
  const int64_t words = most / kPerWord<B>;
  std::fill_n(panels, words * whole_panels(head.dim), Word<B>{});
  for (int64_t r = 0; r < rows; r += kPerWord<B>, panels += kLanes) {
    const T* row = head.row(first + r);
    for_lanes(head.dim, [&](const Lanes& l) {
      Word<B>* to = panels + l.begin * words;
      if constexpr (kPerWord<B> == 1) {
        store(to, l.load(row));
      } else {
        const auto low = std::bit_cast<U16>(l.load(row)) >> 16;
        const U16 both = low | (r + 1 < rows ? std::bit_cast<U16>(l.load(row + head.ld)) : U16{});
        std::memcpy(to, &both, sizeof(both));
      }
    });
  }
}

/// a, contracted over rows: columns of rows [0, rows) and zeros behind them as blocks[column / 16][tile].
template <class B, class T>
void pack_column_tiles(const Head<T>& head, int64_t rows, Word<B>* tiles) {
  thread_local Buffer<Word<B>> panels;
  Word<B>* panel = panels.get(kTileWords * whole_panels(head.dim));
  for (int64_t r = 0; r < rows; r += kTileDepth<B>, tiles += kTile) {
    pack_rows<B>(head, r, std::min(kTileDepth<B>, rows - r), kTileDepth<B>, panel);
    for (int64_t d = 0; d < whole_panels(head.dim); d += kLanes)
      transpose_square(reinterpret_cast<const float*>(panel + d * kTileWords),
                       reinterpret_cast<float*>(tiles + d / kLanes * block_of_tiles<B>(rows)));
  }
}

/// Sixteen rows' columns, block[column][16], become rows [first, first + rows), row r times factor[r].
template <class T>
void unpack_columns(const float* block, int64_t first, int64_t rows, F16 factor, const Head<T>& head) {
  for_lanes(head.dim, [&](const Lanes& lanes) {
    alignas(64) float scaled[kLanes * kLanes], turned[kLanes * kLanes];
    for (int64_t i = 0; i < kLanes; ++i) store(scaled + i * kLanes, load(block + (lanes.begin + i) * kLanes) * factor);
    transpose_square(scaled, turned);
    for (int64_t r = 0; r < rows; ++r) lanes.store(head.row(first + r), load(turned + r * kLanes));
  });
}

/// rows [first, first + rows) = block row r x factor
template <class T>
void unpack(const float* block, int64_t first, int64_t rows, float factor, const Head<T>& head) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = block + r * whole_panels(head.dim);
    for_lanes(head.dim, [&](const Lanes& lanes) { lanes.store(head.row(first + r), lanes.load(from) * factor); });
  }
}

/// f(T{}, B{}) with the type of the activations and that of the products' operands.
template <class F>
void with_types(DType dtype, F&& f) {
  if constexpr (kHasBf16Words)
    if (dtype == DType::kBF16) return f(bf16{}, bf16{});
  with_float_type(dtype, [&](auto type) { f(type, float{}); });
}

/// Which keys a query sees.
struct Mask {
  bool causal;
  int64_t length;
  /// The end of the keys, in whole panels, that sixteen queries from `query` on see.
  [[nodiscard]] int64_t end(int64_t query) const { return causal ? query + kLanes : whole_panels(length); }
  /// Sixteen queries from `query` on: v where `key` < length counts for them, else `otherwise`.
  [[nodiscard]] F16 select(int64_t key, int64_t query, F16 v, float otherwise) const {
    if (!causal || query >= key) return v;
    constexpr I16 kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return kLane + static_cast<int32_t>(query - key) >= 0 ? v : splat(otherwise);
  }
};

}  // namespace cistron::cpu::attention
