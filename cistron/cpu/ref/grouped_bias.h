#pragma once
// Experts' biases in plain loops; the formulas are in cistron/ops/grouped_bias.h. `scale`: by row; empty where it is 1.
#include "cistron/cpu/ref/grouped_gemm.h"

namespace cistron::cpu::ref {

/// Adds them to y, a product.
template <class S>
void add_grouped_bias(Matrix<S>& y, const Matrix<S>& bias, const std::vector<S>& scale, const Segments& segments) {
  for_rows(segments, [&](int64_t e, int64_t r) {
    const S s = scale.empty() ? S(1) : scale[static_cast<size_t>(r)];
    for (int64_t n = 0; n < y.cols; ++n) y(r, n) += s * bias(e, n);
  });
}

template <class S>
struct GroupedBiasGradients {
  Matrix<S> dbias;
  std::vector<S> dweight;  // by row, of the scale
};

template <class S>
GroupedBiasGradients<S> grouped_bias_backward(const Matrix<S>& dy, const Matrix<S>& bias, const std::vector<S>& scale,
                                              const Segments& segments) {
  GroupedBiasGradients<S> out{.dbias = Matrix<S>(bias.rows, bias.cols), .dweight = std::vector<S>(static_cast<size_t>(dy.rows))};
  for_rows(segments, [&](int64_t e, int64_t r) {
    const S s = scale.empty() ? S(1) : scale[static_cast<size_t>(r)];
    for (int64_t n = 0; n < dy.cols; ++n) {
      out.dbias(e, n) += s * dy(r, n);
      out.dweight[static_cast<size_t>(r)] += dy(r, n) * bias(e, n);
    }
  });
  return out;
}

}  // namespace cistron::cpu::ref
