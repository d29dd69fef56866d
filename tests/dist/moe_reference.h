#pragma once
// A mixture of SwiGLU experts and its gradients in float64, token by token and expert by expert.
#include "cistron/cpu/ref/router.h"
#include "cistron/cpu/ref/swiglu.h"

namespace cistron::test {

using cpu::ref::Matrix;

struct MoeWeights {
  Matrix<double> router;                 // [E, H]
  std::vector<Matrix<double>> up, down;  // by expert: [2F, H], [H, F]
};

struct MoeResult {
  Matrix<double> y, dx, drouter;
  std::vector<Matrix<double>> dup, ddown;
};

/// x [rows of a, cols] times the transpose of w [n, cols].
inline Matrix<double> product(const Matrix<double>& x, const Matrix<double>& w) {
  Matrix<double> y(x.rows, w.rows);
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t n = 0; n < w.rows; ++n)
      for (int64_t c = 0; c < x.cols; ++c) y(r, n) += x(r, c) * w(n, c);
  return y;
}

/// sum += factor x a[r, :] outer b[r, :].
inline void add_outer(Matrix<double>& sum, const Matrix<double>& a, const Matrix<double>& b) {
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t i = 0; i < a.cols; ++i)
      for (int64_t j = 0; j < b.cols; ++j) sum(i, j) += a(r, i) * b(r, j);
}

/// y[r, :] += x[r, :] w.
inline void add_product(Matrix<double>& y, const Matrix<double>& x, const Matrix<double>& w) {
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t n = 0; n < w.rows; ++n)
      for (int64_t c = 0; c < w.cols; ++c) y(r, c) += x(r, n) * w(n, c);
}

inline Matrix<double> row_of(const Matrix<double>& x, int64_t row) {
  Matrix<double> one(1, x.cols);
  for (int64_t c = 0; c < x.cols; ++c) one(0, c) = x(row, c);
  return one;
}

inline void add_to_row(Matrix<double>& x, int64_t row, const Matrix<double>& one) {
  for (int64_t c = 0; c < x.cols; ++c) x(row, c) += one(0, c);
}

/// The gradients are of sum(dy y) plus the auxiliary losses over these tokens.
inline MoeResult moe_reference(const MoeWeights& w, const Matrix<double>& x, const Matrix<double>& dy,
                               const Matrix<int32_t>& experts, double balance, double z) {
  const auto num_experts = static_cast<int64_t>(w.up.size());
  MoeResult out{.y = {x.rows, x.cols}, .dx = {x.rows, x.cols}, .drouter = {num_experts, x.cols}};
  for (size_t e = 0; e < w.up.size(); ++e) {
    out.dup.emplace_back(w.up[e].rows, w.up[e].cols);
    out.ddown.emplace_back(w.down[e].rows, w.down[e].cols);
  }
  const Matrix<double> logits = product(x, w.router);
  const Matrix<double> weights = cpu::ref::routing_weights(cpu::ref::router_probs(logits), experts);
  Matrix<double> dweights(experts.rows, experts.cols);
  cpu::ref::RouterLosses<double> losses{std::vector<double>(w.up.size(), 0.0), static_cast<double>(x.rows), balance, z};
  for (int64_t t = 0; t < x.rows; ++t)
    for (int64_t j = 0; j < experts.cols; ++j) {
      const auto e = static_cast<size_t>(experts(t, j));
      losses.choices[e] += 1;
      const Matrix<double> x_t = row_of(x, t), dy_t = row_of(dy, t), hidden = product(x_t, w.up[e]);
      const std::vector<double> weight{weights(t, j)};
      const Matrix<double> activation = cpu::ref::scaled_swiglu_forward(hidden, weight, {0});
      add_to_row(out.y, t, product(activation, w.down[e]));
      add_outer(out.ddown[e], dy_t, activation);
      Matrix<double> dactivation(1, activation.cols), dx_t(1, x.cols);
      add_product(dactivation, dy_t, w.down[e]);
      const auto grads = cpu::ref::scaled_swiglu_backward(dactivation, hidden, weight, {0});
      dweights(t, j) = grads.dweight[0];
      add_outer(out.dup[e], grads.dgate_up, x_t);
      add_product(dx_t, grads.dgate_up, w.up[e]);
      add_to_row(out.dx, t, dx_t);
    }
  if (x.rows == 0) return out;
  const Matrix<double> dlogits = cpu::ref::router_backward(logits, experts, dweights, losses);
  add_outer(out.drouter, dlogits, x);
  add_product(out.dx, dlogits, w.router);
  return out;
}

}  // namespace cistron::test
