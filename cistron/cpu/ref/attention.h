#pragma once
// Attention by its definition, score by score; the formulas are in cistron/ops/attention.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cistron/cpu/ref/matrix.h"
#include "cistron/ops/attention.h"

namespace cistron::cpu::ref {

template <class S>
struct AttentionCase {
  Matrix<S> qkv;
  std::vector<int64_t> cu_seqlens;
  ops::AttentionShape shape;
  S scale = 1;
  bool causal = true;

  [[nodiscard]] int64_t q(int64_t h, int64_t d) const { return h * shape.head_dim + d; }
  [[nodiscard]] int64_t k(int64_t h, int64_t d) const { return (shape.num_heads + kv(h)) * shape.head_dim + d; }
  [[nodiscard]] int64_t v(int64_t h, int64_t d) const {
    return (shape.num_heads + shape.num_kv_heads + kv(h)) * shape.head_dim + d;
  }
  [[nodiscard]] int64_t kv(int64_t h) const { return h / (shape.num_heads / shape.num_kv_heads); }

  /// f(head, query, first key, end of keys) for every query.
  template <class F>
  void for_queries(F&& f) const {
    for (int64_t h = 0; h < shape.num_heads; ++h)
      for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s)
        for (int64_t i = cu_seqlens[s]; i < cu_seqlens[s + 1]; ++i) f(h, i, cu_seqlens[s], causal ? i + 1 : cu_seqlens[s + 1]);
  }
  [[nodiscard]] S score(int64_t h, int64_t i, int64_t j) const {
    S sum = 0;
    for (int64_t d = 0; d < shape.head_dim; ++d) sum += qkv(i, q(h, d)) * qkv(j, k(h, d));
    return scale * sum;
  }
};

template <class S>
struct Attention {
  Matrix<S> out;
  Matrix<S> lse;  // [heads, T]
};

template <class S>
Attention<S> attention_forward(const AttentionCase<S>& c) {
  Attention<S> result{{c.qkv.rows, c.shape.out_width()}, {c.shape.num_heads, c.qkv.rows}};
  c.for_queries([&](int64_t h, int64_t i, int64_t begin, int64_t end) {
    S max = c.score(h, i, begin), sum = 0;
    for (int64_t j = begin; j < end; ++j) max = std::max(max, c.score(h, i, j));
    for (int64_t j = begin; j < end; ++j) sum += std::exp(c.score(h, i, j) - max);
    result.lse(h, i) = max + std::log(sum);
    for (int64_t j = begin; j < end; ++j) {
      const S p = std::exp(c.score(h, i, j) - result.lse(h, i));
      for (int64_t d = 0; d < c.shape.head_dim; ++d) result.out(i, c.q(h, d)) += p * c.qkv(j, c.v(h, d));
    }
  });
  return result;
}

/// Gradient of sum of dout x out.
template <class S>
Matrix<S> attention_backward(const AttentionCase<S>& c, const Matrix<S>& dout) {
  const auto forward = attention_forward(c);
  Matrix<S> dqkv(c.qkv.rows, c.qkv.cols);
  const int64_t dim = c.shape.head_dim;
  c.for_queries([&](int64_t h, int64_t i, int64_t begin, int64_t end) {
    S delta = 0;
    for (int64_t d = 0; d < dim; ++d) delta += dout(i, c.q(h, d)) * forward.out(i, c.q(h, d));
    for (int64_t j = begin; j < end; ++j) {
      const S p = std::exp(c.score(h, i, j) - forward.lse(h, i));
      S dp = 0;
      for (int64_t d = 0; d < dim; ++d) dp += dout(i, c.q(h, d)) * c.qkv(j, c.v(h, d));
      const S ds = c.scale * p * (dp - delta);
      for (int64_t d = 0; d < dim; ++d) {
        dqkv(i, c.q(h, d)) += ds * c.qkv(j, c.k(h, d));
        dqkv(j, c.k(h, d)) += ds * c.qkv(i, c.q(h, d));
        dqkv(j, c.v(h, d)) += p * dout(i, c.q(h, d));
      }
    }
  });
  return dqkv;
}

template <class S>
void rope(Matrix<S>& qkv, const std::vector<int64_t>& positions, const ops::AttentionShape& shape, S theta, bool inverse) {
  const int64_t half = shape.head_dim / 2;
  for (int64_t t = 0; t < qkv.rows; ++t)
    for (int64_t h = 0; h < shape.num_heads + shape.num_kv_heads; ++h)
      for (int64_t i = 0; i < half; ++i) {
        const S angle = static_cast<S>(positions[static_cast<size_t>(t)]) * std::pow(theta, -S(2 * i) / S(shape.head_dim));
        S &a = qkv(t, h * shape.head_dim + i), &b = qkv(t, h * shape.head_dim + half + i);
        const S c = std::cos(angle), s = inverse ? -std::sin(angle) : std::sin(angle), old = a;
        a = old * c - b * s;
        b = b * c + old * s;
      }
}

}  // namespace cistron::cpu::ref
