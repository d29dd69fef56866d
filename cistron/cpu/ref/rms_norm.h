#pragma once
#include <cmath>

#include "cistron/cpu/ref/matrix.h"

namespace cistron::cpu::ref {

template <class S>
S rms_norm_rstd(const Matrix<S>& x, S eps, int64_t row) {
  S sum = 0;
  for (int64_t h = 0; h < x.cols; ++h) sum += x(row, h) * x(row, h);
  return S(1) / std::sqrt(sum / S(x.cols) + eps);
}

template <class S>
Matrix<S> rms_norm_forward(const Matrix<S>& x, const std::vector<S>& w, S eps) {
  Matrix<S> y(x.rows, x.cols);
  for (int64_t t = 0; t < x.rows; ++t) {
    const S rstd = rms_norm_rstd(x, eps, t);
    for (int64_t h = 0; h < x.cols; ++h) y(t, h) = x(t, h) * rstd * w[static_cast<size_t>(h)];
  }
  return y;
}

template <class S>
struct RmsNormGradients {
  Matrix<S> dx;
  std::vector<S> dw;
};

template <class S>
RmsNormGradients<S> rms_norm_backward(const Matrix<S>& dy, const Matrix<S>& x, const std::vector<S>& w, S eps) {
  RmsNormGradients<S> grads{Matrix<S>(x.rows, x.cols), std::vector<S>(w.size(), S(0))};
  for (int64_t t = 0; t < x.rows; ++t) {
    const S rstd = rms_norm_rstd(x, eps, t);
    S mean = 0;
    for (int64_t h = 0; h < x.cols; ++h) mean += dy(t, h) * w[static_cast<size_t>(h)] * x(t, h) / S(x.cols);
    for (int64_t h = 0; h < x.cols; ++h) {
      grads.dx(t, h) = rstd * (dy(t, h) * w[static_cast<size_t>(h)] - x(t, h) * rstd * rstd * mean);
      grads.dw[static_cast<size_t>(h)] += dy(t, h) * x(t, h) * rstd;
    }
  }
  return grads;
}

}  // namespace cistron::cpu::ref
