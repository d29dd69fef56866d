#pragma once
// What attention's forward and backward share. A sequence's heads are copied into f32 blocks of 64 rows, zeros behind the last,
// so every product has one of four shapes whatever the sequence's length and place: its bits depend on nothing else. Scores are
// kept transposed, [keys, queries]: sixteen queries lie in the lanes of a vector, and a softmax never adds across lanes.
#include <algorithm>
#include <array>
#include <vector>

#include "cistron/core/checked.h"
#include "cistron/cpu/fast/onednn.h"
#include "cistron/cpu/fast/vec_math.h"
#include "cistron/ops/attention.h"

namespace cistron::cpu::attention {

constexpr int64_t kBlock = 64;
using I16 = int32_t __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)
using Scores = std::array<float, kBlock * kBlock>;     // [key, query]
using PerQuery = std::array<float, kBlock>;

/// f32 on cache lines; keeps its size from one use to the next.
class Buffer {
 public:
  /// Uninitialised; count > 0.
  float* get(int64_t count) {
    lines_.resize(std::max(lines_.size(), static_cast<size_t>(ceil_div(count, kLanes))));
    return lines_.data()->values;
  }
  float* zeros(int64_t count) {
    std::fill_n(get(count), count, 0.0F);
    return lines_.data()->values;
  }

 private:
  struct alignas(64) Line {
    float values[kLanes];
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

/// block[0:padded_rows, dim] = scale x rows [first, first + rows), zeros behind.
template <class T>
void pack(const Head<T>& head, int64_t first, int64_t rows, int64_t padded_rows, float scale, float* block) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* from = head.data + (first + r) * head.ld;
    float* to = block + r * head.dim;
    for_lanes(head.dim, [&](const Lanes& lanes) { lanes.store(to, lanes.load(from) * scale); });
  }
  std::fill_n(block + rows * head.dim, (padded_rows - rows) * head.dim, 0.0F);
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
inline void inner(const float* a, const float* b, int64_t dim, Scores& scores) {
  gemm({.m = kBlock, .n = kBlock, .k = dim, .lda = dim, .ldb = dim, .ldc = kBlock, .transpose_b = true}, a, b, scores.data());
}
/// by_key[key, :] += sum over queries of scores[key, query] rows[query, :]
inline void add_by_key(const Scores& scores, const float* rows, int64_t dim, float* by_key) {
  gemm({.m = kBlock, .n = dim, .k = kBlock, .lda = kBlock, .ldb = dim, .ldc = dim, .accumulate = true}, scores.data(), rows,
       by_key);
}
/// by_query[query, :] += sum over keys of scores[key, query] rows[key, :]
inline void add_by_query(const Scores& scores, const float* rows, int64_t dim, float* by_query) {
  gemm({.m = kBlock, .n = dim, .k = kBlock, .lda = kBlock, .ldb = dim, .ldc = dim, .transpose_a = true, .accumulate = true},
       scores.data(), rows, by_query);
}

/// Which keys of a block count: the first `keys`; on the causal diagonal only keys up to the query.
struct Mask {
  int64_t keys;
  bool diagonal;
  /// Sixteen queries from `query` on: v where `key` counts for them, else `otherwise`. `key` < keys.
  [[nodiscard]] F16 select(int64_t key, int64_t query, F16 v, float otherwise) const {
    if (!diagonal || key <= query) return v;
    constexpr I16 kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return kLane + static_cast<int32_t>(query - key) >= 0 ? v : splat(otherwise);
  }
};

inline Mask mask_of(int64_t key_block, int64_t query_block, int64_t length, bool causal) {
  return {std::min(kBlock, length - key_block * kBlock), causal && key_block == query_block};
}

/// Key blocks that queries of a block attend to.
inline int64_t key_blocks(int64_t query_block, int64_t length, bool causal) {
  return causal ? query_block + 1 : ceil_div(length, kBlock);
}

}  // namespace cistron::cpu::attention
