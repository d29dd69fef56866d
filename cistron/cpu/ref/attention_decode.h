#pragma once
// Attention over a cache by its definition; the formula is in cistron/ops/attention_decode.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cistron/cpu/ref/matrix.h"
#include "cistron/ops/attention.h"

namespace cistron::cpu::ref {

template <class S>
struct DecodeCase {
  Matrix<S> qkv;
  Matrix<S> cache;  // [slots x 2 kv_heads x capacity, D]
  int64_t capacity = 0;
  std::vector<int64_t> slots, positions;
  ops::AttentionShape shape;
  S scale = 1;

  [[nodiscard]] int64_t kv(int64_t h) const { return h / (shape.num_heads / shape.num_kv_heads); }
  [[nodiscard]] S key(int64_t t, int64_t j, int64_t h, int64_t d) const { return at(t, j, kv(h), d); }
  [[nodiscard]] S value(int64_t t, int64_t j, int64_t h, int64_t d) const { return at(t, j, shape.num_kv_heads + kv(h), d); }
  [[nodiscard]] S score(int64_t t, int64_t j, int64_t h) const {
    S sum = 0;
    for (int64_t d = 0; d < shape.head_dim; ++d) sum += qkv(t, h * shape.head_dim + d) * key(t, j, h, d);
    return scale * sum;
  }

 private:
  [[nodiscard]] S at(int64_t t, int64_t j, int64_t head, int64_t d) const {
    return cache((slots[static_cast<size_t>(t)] * 2 * shape.num_kv_heads + head) * capacity + j, d);
  }
};

template <class S>
Matrix<S> attention_decode(const DecodeCase<S>& c) {
  Matrix<S> out(c.qkv.rows, c.shape.out_width());
  for (int64_t t = 0; t < c.qkv.rows; ++t)
    for (int64_t h = 0; h < c.shape.num_heads; ++h) {
      const int64_t last = c.positions[static_cast<size_t>(t)];
      S max = c.score(t, 0, h), sum = 0;
      for (int64_t j = 0; j <= last; ++j) max = std::max(max, c.score(t, j, h));
      for (int64_t j = 0; j <= last; ++j) sum += std::exp(c.score(t, j, h) - max);
      for (int64_t j = 0; j <= last; ++j)
        for (int64_t d = 0; d < c.shape.head_dim; ++d)
          out(t, h * c.shape.head_dim + d) += std::exp(c.score(t, j, h) - max) / sum * c.value(t, j, h, d);
    }
  return out;
}

}  // namespace cistron::cpu::ref
