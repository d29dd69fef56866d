#pragma once
// Errors that attention in f32 may have against float64, to first order in u = 2^-24, element by element. Tensor cores add 16
// products to a sum at once, each cut at 2^-23 of the largest: 2.2 u a product instead of u. Where products take
// bf16, probabilities and score gradients are rounded before those that follow: `tile_rounding`, relative.
#include <algorithm>
#include <cmath>

#include "cistron/cpu/ref/attention.h"
#include "tests/ops/support.h"

namespace cistron::test {

using AttentionCase = cpu::ref::AttentionCase<double>;
using cpu::ref::Matrix;

class AttentionBounds {
 public:
  AttentionBounds(const AttentionCase& c, DType dtype, double tile_rounding = 0)
      : c_(c),
        u_(tile_rounding > 0 ? 2.2 * 0x1p-24 : 0x1p-24),
        tile_(tile_rounding),
        storage_(dtype == DType::kF32 ? 0.0 : unit_roundoff(dtype)),
        forward_(cpu::ref::attention_forward(c)),
        out_(forward_.out.rows, forward_.out.cols),
        lse_(forward_.lse.rows, forward_.lse.cols) {
    c_.for_queries([&](int64_t h, int64_t i, int64_t begin, int64_t end) { add_forward(h, i, begin, end); });
  }
  [[nodiscard]] const std::vector<double>& out() const { return out_.data; }
  [[nodiscard]] const std::vector<double>& lse() const { return lse_.data; }
  [[nodiscard]] std::vector<double> dqkv(const Matrix<double>& dout, const Matrix<double>& want) const {
    Matrix<double> bound(c_.qkv.rows, c_.qkv.cols);
    c_.for_queries([&](int64_t h, int64_t i, int64_t begin, int64_t end) { add_backward(h, i, begin, end, dout, bound); });
    for (size_t e = 0; e < bound.data.size(); ++e) bound.data[e] += (storage_ + u_) * std::abs(want.data[e]) + 1e-36;
    return bound.data;
  }

 private:
  // A score: dim products of rounded scale x q.
  [[nodiscard]] double score_error(int64_t h, int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t d = 0; d < c_.shape.head_dim; ++d) sum += std::abs(c_.qkv(i, c_.q(h, d)) * c_.qkv(j, c_.k(h, d)));
    return static_cast<double>(c_.shape.head_dim + 2) * u_ * std::abs(c_.scale) * sum;
  }

  // Sums run over whole blocks of 64 keys; each block brings a rescaling: an exponential of 4 u, its argument's rounding, a
  // product.
  void add_forward(int64_t h, int64_t i, int64_t begin, int64_t end) {
    const double terms = static_cast<double>(end - begin) + 64, blocks = terms / 64 + 1;
    double moved = 0, largest = 0;
    for (int64_t j = begin; j < end; ++j) {
      moved = std::max(moved, score_error(h, i, j));
      largest = std::max(largest, std::abs(c_.score(h, i, j)));
    }
    const double sum_error = moved + (terms + 8 * blocks + 2 * largest * (blocks + 1) + 8) * u_;
    lse_(h, i) = 2 * moved + sum_error + 4 * u_ * (largest + std::abs(forward_.lse(h, i)) + 1);
    const double relative = 1.05 * (moved + sum_error + (4 + 2 * largest) * u_) + (terms + 8) * u_;
    for (int64_t d = 0; d < c_.shape.head_dim; ++d) {
      double size = 0;
      for (int64_t j = begin; j < end; ++j)
        size += std::exp(c_.score(h, i, j) - forward_.lse(h, i)) * std::abs(c_.qkv(j, c_.v(h, d)));
      out_(i, c_.q(h, d)) = (relative + tile_) * size + (storage_ + u_) * std::abs(forward_.out(i, c_.q(h, d))) + 1e-36;
    }
  }

  void add_backward(int64_t h, int64_t i, int64_t begin, int64_t end, const Matrix<double>& dout, Matrix<double>& bound) const {
    const int64_t dim = c_.shape.head_dim;
    double delta = 0, delta_error = 0;
    for (int64_t d = 0; d < dim; ++d) {
      const int64_t at = c_.q(h, d);
      delta += dout(i, at) * forward_.out(i, at);
      delta_error += std::abs(dout(i, at)) * (out_(i, at) + static_cast<double>(dim + 1) * u_ * std::abs(forward_.out(i, at)));
    }
    // A key's gradient sums over the queries of all heads that share it, a query's over its keys.
    const double group = static_cast<double>(c_.shape.num_heads / c_.shape.num_kv_heads);
    const double terms = (static_cast<double>(c_.cu_seqlens.back()) + 64) * group * u_;
    for (int64_t j = begin; j < end; ++j) {
      const double score = c_.score(h, i, j), p = std::exp(score - forward_.lse(h, i));
      const double relative =
          1.05 * (score_error(h, i, j) + lse_(h, i)) + (8 + 2 * (std::abs(score) + std::abs(forward_.lse(h, i)))) * u_;
      double dp = 0, dp_size = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const double product = dout(i, c_.q(h, d)) * c_.qkv(j, c_.v(h, d));
        dp += product;
        dp_size += std::abs(product);
      }
      const double ds = std::abs(c_.scale * p * (dp - delta));
      const double ds_error = ds * (relative + 4 * u_ + tile_) +
                              (1 + tile_) * std::abs(c_.scale) * p *
                                  (delta_error + (static_cast<double>(dim) + 2) * u_ * (dp_size + std::abs(delta)));
      for (int64_t d = 0; d < dim; ++d) {
        bound(i, c_.q(h, d)) += (ds_error + terms * ds) * std::abs(c_.qkv(j, c_.k(h, d)));
        bound(j, c_.k(h, d)) += (ds_error + terms * ds) * std::abs(c_.qkv(i, c_.q(h, d)));
        bound(j, c_.v(h, d)) += p * (relative + tile_ + terms) * std::abs(dout(i, c_.q(h, d)));
      }
    }
  }

  const AttentionCase& c_;
  double u_, tile_;
  double storage_;
  cpu::ref::Attention<double> forward_;
  Matrix<double> out_, lse_;
};

}  // namespace cistron::test
