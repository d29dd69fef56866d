#pragma once
// The grouped products in plain loops; the formulas are in cistron/ops/grouped_gemm.h. Weights [E, N, K] are a matrix [E N, K].
#include <cstdint>
#include <vector>

#include "cistron/cpu/ref/matrix.h"

namespace cistron::cpu::ref {

struct Segments {
  std::vector<int64_t> starts, counts;
};

/// f(expert, row) for every row in use.
template <class F>
void for_rows(const Segments& segments, F&& f) {
  for (size_t e = 0; e < segments.counts.size(); ++e)
    for (int64_t r = 0; r < segments.counts[e]; ++r) f(static_cast<int64_t>(e), segments.starts[e] + r);
}

template <class S>
Matrix<S> grouped_gemm_forward(const Matrix<S>& x, const Matrix<S>& w, int64_t n, const Segments& segments) {
  Matrix<S> y(x.rows, n);
  for_rows(segments, [&](int64_t e, int64_t r) {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t k = 0; k < x.cols; ++k) y(r, i) += x(r, k) * w(e * n + i, k);
  });
  return y;
}

template <class S>
Matrix<S> grouped_gemm_dgrad(const Matrix<S>& dy, const Matrix<S>& w, const Segments& segments) {
  Matrix<S> dx(dy.rows, w.cols);
  for_rows(segments, [&](int64_t e, int64_t r) {
    for (int64_t n = 0; n < dy.cols; ++n)
      for (int64_t k = 0; k < w.cols; ++k) dx(r, k) += dy(r, n) * w(e * dy.cols + n, k);
  });
  return dx;
}

template <class S>
Matrix<S> grouped_gemm_wgrad(const Matrix<S>& dy, const Matrix<S>& x, const Segments& segments) {
  Matrix<S> dw(static_cast<int64_t>(segments.counts.size()) * dy.cols, x.cols);
  for_rows(segments, [&](int64_t e, int64_t r) {
    for (int64_t n = 0; n < dy.cols; ++n)
      for (int64_t k = 0; k < x.cols; ++k) dw(e * dy.cols + n, k) += dy(r, n) * x(r, k);
  });
  return dw;
}

}  // namespace cistron::cpu::ref
