#pragma once
// What attention's forward and backward share. A sequence's heads are copied into blocks of 64 rows, zeros behind the last, and a
// block of queries meets up to 256 keys at once: so products have few shapes, which depend on a row's place in its sequence and
// on the sequence's length alone, and so do their bits. Operands of the products are bf16 where activations are and the processor
// multiplies it fast, else f32; sums are f32. Scores are kept transposed, [keys, queries]: sixteen queries lie in the lanes of a
// vector, and a softmax never adds across lanes.
#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "cistron/core/checked.h"
#include "cistron/cpu/fast/onednn.h"
#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/vec_math.h"
#include "cistron/ops/attention.h"

namespace cistron::cpu::attention {

constexpr int64_t kBlock = 64;
constexpr int64_t kMostKeys = 256;  // of a product: a thread's arrays of scores stay in a cache of 512 KiB
constexpr int64_t kMostScores = kMostKeys * kBlock;
using I16 = int32_t __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)
using PerQuery = std::array<float, kBlock>;

template <class T>
constexpr DType kTypeOf = std::is_same_v<T, bf16> ? DType::kBF16 : DType::kF32;

/// On cache lines; keeps its size from one use to the next.
template <class T>
class Buffer {
 public:
  /// Uninitialised; count > 0.
  T* get(int64_t count) {
    lines_.resize(std::max(lines_.size(), static_cast<size_t>(ceil_div(count, kPerLine))));
    return lines_.data()->values;
  }
  T* zeros(int64_t count) { return std::fill_n(get(count), count, T(0.0F)) - count; }

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

/// block[0:padded_rows, dim] = rows [first, first + rows), zeros behind.
template <class T, class B>
void pack(const Head<T>& head, int64_t first, int64_t rows, int64_t padded_rows, B* block) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = head.data + (first + r) * head.ld;
    B* to = block + r * head.dim;
    if constexpr (std::is_same_v<T, B>)
      std::copy_n(from, head.dim, to);
    else
      for_lanes(head.dim, [&](const Lanes& lanes) { lanes.store(to, lanes.load(from)); });
  }
  std::fill_n(block + rows * head.dim, (padded_rows - rows) * head.dim, B(0.0F));
}

/// rows [first, first + rows) = block row r x factor(r)
template <class T, class F>
void unpack(const float* block, int64_t first, int64_t rows, F&& factor, const Head<T>& head) {
  for (int64_t r = 0; r < rows; ++r) {
    const float f = factor(r);
    const float* from = block + r * head.dim;
    T* to = head.data + (first + r) * head.ld;
    for_lanes(head.dim, [&](const Lanes& lanes) { lanes.store(to, lanes.load(from) * f); });
  }
}

/// scores[key, query] = a[key, :] b[query, :]
template <class B>
void inner(const B* a, const B* b, int64_t keys, int64_t dim, float* scores) {
  gemm({.m = keys, .n = kBlock, .k = dim, .lda = dim, .ldb = dim, .ldc = kBlock, .transpose_b = true, .in = kTypeOf<B>}, a, b,
       scores);
}
/// by_key[key, :] += sum over queries of scores[key, query] rows[query, :]
template <class B>
void add_by_key(const B* scores, const B* rows, int64_t keys, int64_t dim, float* by_key) {
  gemm({.m = keys, .n = dim, .k = kBlock, .lda = kBlock, .ldb = dim, .ldc = dim, .accumulate = true, .in = kTypeOf<B>}, scores,
       rows, by_key);
}
/// by_query[query, :] += sum over keys of scores[key, query] rows[key, :]
template <class B>
void add_by_query(const B* scores, const B* rows, int64_t keys, int64_t dim, float* by_query) {
  gemm({.m = kBlock,
        .n = dim,
        .k = keys,
        .lda = kBlock,
        .ldb = dim,
        .ldc = dim,
        .transpose_a = true,
        .accumulate = true,
        .in = kTypeOf<B>},
       scores, rows, by_query);
}

/// f(T{}, B{}) with the type of the activations and that of the products' operands.
template <class F>
void with_types(DType dtype, F&& f) {
  if (dtype == DType::kBF16 && has_fast_bf16()) return f(bf16{}, bf16{});
  with_float_type(dtype, [&](auto type) { f(type, float{}); });
}

/// A block of queries and the keys that it meets at once.
struct Tile {
  int64_t first_key;
  int64_t padded_keys;  // whole blocks
  int64_t keys;         // those that there are
  int64_t diagonal;     // query q sees keys up to q + diagonal
  /// Sixteen queries from `query` on: v where `key` counts for them, else `otherwise`. `key` < keys.
  [[nodiscard]] F16 select(int64_t key, int64_t query, F16 v, float otherwise) const {
    const int64_t before = query + diagonal - key;
    if (before >= 0) return v;
    constexpr I16 kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return kLane + static_cast<int32_t>(before) >= 0 ? v : splat(otherwise);
  }
};

/// f(Tile) for all keys that queries [first, first + kBlock) of a sequence attend to.
template <class F>
void for_tiles(int64_t first, int64_t length, bool causal, F&& f) {
  const int64_t end = causal ? first + kBlock : round_up(length, kBlock);
  for (int64_t key = 0; key < end; key += kMostKeys) {
    const int64_t padded = std::min(kMostKeys, end - key);
    f(Tile{key, padded, std::min(padded, length - key), causal ? first - key : kMostKeys});
  }
}

}  // namespace cistron::cpu::attention
