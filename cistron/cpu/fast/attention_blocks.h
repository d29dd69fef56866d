#pragma once
// What attention's forward and backward share. A sequence's heads are copied into panels of sixteen rows (words.h), zeros behind
// the last, so that a row's bits depend on its place in its sequence and on the sequence alone. Operands of the products are bf16
// where activations are and this build multiplies it, else f32; sums are f32. Scores are kept transposed, [keys, queries]:
// sixteen queries lie in the lanes of a vector, and a softmax never adds across lanes.
#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "cistron/core/checked.h"
#include "cistron/cpu/fast/parallel.h"
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

/// Contracted over a head's columns: rows [first, first + rows) and zeros behind them as panels[row / 16][word][16]. Columns are
/// whole vectors: zeros behind the last.
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

/// Contracted over rows: rows [first, first + rows) and zeros up to `most`, whole panels, as panels[column / 16][word][16]; words
/// far apart in memory, of whole rows, would meet in few sets of the cache.
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

/// rows [first, first + rows) = block row r x factor(r)
template <class T, class F>
void unpack(const float* block, int64_t first, int64_t rows, F&& factor, const Head<T>& head) {
  for (int64_t r = 0; r < rows; ++r) {
    const float f = factor(r);
    const float* from = block + r * whole_panels(head.dim);
    for_lanes(head.dim, [&](const Lanes& lanes) { lanes.store(head.row(first + r), lanes.load(from) * f); });
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
