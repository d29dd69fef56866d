#pragma once
// The formulas are in cistron/ops/cross_entropy.h.
#include <algorithm>
#include <cmath>

#include "cistron/cpu/ref/matmul.h"

namespace cistron::cpu::ref {

template <class S>
struct CrossEntropy {
  std::vector<S> nll;
  S loss = 0;
  Matrix<S> logits, dlogits, dx, dw;
};

template <class S>
CrossEntropy<S> linear_cross_entropy(const Matrix<S>& x, const Matrix<S>& w, const std::vector<int32_t>& labels,
                                     const std::vector<S>& loss_weight, S scale) {
  CrossEntropy<S> result{.nll = std::vector<S>(labels.size()), .logits = matmul_forward(x, w), .dlogits = {x.rows, w.rows}};
  for (int64_t t = 0; t < x.rows; ++t) {
    const auto i = static_cast<size_t>(t);
    if (labels[i] < 0) continue;
    S max = result.logits(t, 0), sum = 0;
    for (int64_t v = 0; v < w.rows; ++v) max = std::max(max, result.logits(t, v));
    for (int64_t v = 0; v < w.rows; ++v) sum += std::exp(result.logits(t, v) - max);
    result.nll[i] = std::log(sum) + max - result.logits(t, labels[i]);
    result.loss += loss_weight[i] * result.nll[i];
    for (int64_t v = 0; v < w.rows; ++v)
      result.dlogits(t, v) = scale * loss_weight[i] * (std::exp(result.logits(t, v) - max) / sum - (v == labels[i] ? 1 : 0));
  }
  result.dx = matmul_dgrad(result.dlogits, w);
  result.dw = matmul_wgrad(result.dlogits, x);
  return result;
}

}  // namespace cistron::cpu::ref
