#pragma once
#include <cmath>

#include "cistron/cpu/ref/matrix.h"

namespace cistron::cpu::ref {

template <class S>
S sigmoid(S x) {
  return S(1) / (S(1) + std::exp(-x));
}

/// Rows without a source are zeros.
template <class S>
Matrix<S> scaled_swiglu_forward(const Matrix<S>& gate_up, const std::vector<S>& weight, const std::vector<int32_t>& source_row) {
  Matrix<S> y(gate_up.rows, gate_up.cols / 2);
  for (int64_t r = 0; r < y.rows; ++r) {
    if (source_row[static_cast<size_t>(r)] < 0) continue;
    for (int64_t f = 0; f < y.cols; ++f) {
      const S g = gate_up(r, f);
      const S u = gate_up(r, y.cols + f);
      y(r, f) = g * sigmoid(g) * u * weight[static_cast<size_t>(r)];
    }
  }
  return y;
}

template <class S>
struct ScaledSwigluGradients {
  Matrix<S> dgate_up;
  std::vector<S> dweight;
};

template <class S>
ScaledSwigluGradients<S> scaled_swiglu_backward(const Matrix<S>& dy, const Matrix<S>& gate_up, const std::vector<S>& weight,
                                                const std::vector<int32_t>& source_row) {
  ScaledSwigluGradients<S> grads{Matrix<S>(gate_up.rows, gate_up.cols), std::vector<S>(weight.size(), S(0))};
  for (int64_t r = 0; r < dy.rows; ++r) {
    const auto row = static_cast<size_t>(r);
    if (source_row[row] < 0) continue;
    for (int64_t f = 0; f < dy.cols; ++f) {
      const S g = gate_up(r, f);
      const S u = gate_up(r, dy.cols + f);
      const S sig = sigmoid(g);
      grads.dgate_up(r, f) = dy(r, f) * weight[row] * u * sig * (S(1) + g * (S(1) - sig));
      grads.dgate_up(r, dy.cols + f) = dy(r, f) * weight[row] * g * sig;
      grads.dweight[row] += dy(r, f) * g * sig * u;
    }
  }
  return grads;
}

}  // namespace cistron::cpu::ref
