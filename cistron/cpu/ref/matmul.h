#pragma once
// The dense products in plain loops; the formulas are in cistron/ops/matmul.h.
#include "cistron/cpu/ref/matrix.h"

namespace cistron::cpu::ref {

/// x [M, K] w [N, K]^T
template <class S>
Matrix<S> matmul_forward(const Matrix<S>& x, const Matrix<S>& w) {
  Matrix<S> y(x.rows, w.rows);
  for (int64_t m = 0; m < y.rows; ++m)
    for (int64_t n = 0; n < y.cols; ++n)
      for (int64_t k = 0; k < x.cols; ++k) y(m, n) += x(m, k) * w(n, k);
  return y;
}

/// dy [M, N] w [N, K]
template <class S>
Matrix<S> matmul_dgrad(const Matrix<S>& dy, const Matrix<S>& w) {
  Matrix<S> dx(dy.rows, w.cols);
  for (int64_t m = 0; m < dx.rows; ++m)
    for (int64_t n = 0; n < dy.cols; ++n)
      for (int64_t k = 0; k < dx.cols; ++k) dx(m, k) += dy(m, n) * w(n, k);
  return dx;
}

/// dy [M, N]^T x [M, K]
template <class S>
Matrix<S> matmul_wgrad(const Matrix<S>& dy, const Matrix<S>& x) {
  Matrix<S> dw(dy.cols, x.cols);
  for (int64_t m = 0; m < dy.rows; ++m)
    for (int64_t n = 0; n < dw.rows; ++n)
      for (int64_t k = 0; k < dw.cols; ++k) dw(n, k) += dy(m, n) * x(m, k);
  return dw;
}

}  // namespace cistron::cpu::ref
