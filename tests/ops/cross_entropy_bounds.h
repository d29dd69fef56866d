#pragma once
// Errors that the head's product with the cross-entropy may have against float64, element by element.
#include <algorithm>
#include <cmath>

#include "cistron/cpu/ref/cross_entropy.h"
#include "tests/ops/product_bounds.h"

namespace cistron::test {

struct CrossEntropyBounds {
  std::vector<double> nll, dx, dw;
};

/// Operands on the host.
struct CrossEntropyOperands {
  const Tensor &x, &w, &labels, &weight;
  double scale;

  [[nodiscard]] cpu::ref::CrossEntropy<double> reference() const {
    const auto l = to_double(labels);
    return cpu::ref::linear_cross_entropy(to_matrix(x), to_matrix(w), std::vector<int32_t>(l.begin(), l.end()), to_double(weight),
                                          scale);
  }

  // First order in u. The logits' errors move nll by at most twice the largest of them, a probability by that relatively. A sum
  // of V exponentials of 2 ulp, whose arguments were rounded too, is off by (V + 16 + spread of the logits) u relatively.
  CrossEntropyBounds bounds(const cpu::ref::CrossEntropy<double>& want) const {
    const double u = unit_roundoff(DType::kF32);
    const DType dtype = x.dtype();
    const int64_t tokens = x.dim(0), hidden = x.dim(1), vocabulary = w.dim(0);
    const auto magnitude = cpu::ref::matmul_forward(absolute(to_matrix(x)), absolute(to_matrix(w)));
    const auto logit_error = product_bound(magnitude, hidden, dtype, DType::kF32);
    const auto weights = to_double(weight), label = to_double(labels);
    CrossEntropyBounds result{.nll = std::vector<double>(want.nll.size())};
    cpu::ref::Matrix<double> dlogit_error(tokens, vocabulary);
    for (int64_t t = 0; t < tokens; ++t) {
      const auto i = static_cast<size_t>(t);
      if (label[i] < 0) continue;
      double moved = 0, largest = 0;
      for (int64_t v = 0; v < vocabulary; ++v) {
        moved = std::max(moved, logit_error[static_cast<size_t>(t * vocabulary + v)]);
        largest = std::max(largest, std::abs(want.logits(t, v)));
      }
      const double relative = 2.1 * moved + (static_cast<double>(vocabulary) + 16 + 2 * largest) * u;
      result.nll[i] = relative + 4 * (largest + std::abs(want.nll[i]) + 1) * u;
      const double g = std::abs(scale * weights[i]);
      for (int64_t v = 0; v < vocabulary; ++v) {
        const double d = std::abs(want.dlogits(t, v)), p = static_cast<double>(v) == label[i] ? 1.0 - d / g : d / g;
        dlogit_error(t, v) = g * (p * relative + 4 * u) + d * unit_roundoff(dtype);
      }
    }
    const auto dlogits = absolute(want.dlogits), ax = absolute(to_matrix(x)), aw = absolute(to_matrix(w));
    result.dx = product_bound(cpu::ref::matmul_dgrad(dlogits, aw), vocabulary, dtype, dtype);
    result.dw = product_bound(cpu::ref::matmul_wgrad(dlogits, ax), tokens, dtype, DType::kF32);
    const auto dx_error = cpu::ref::matmul_dgrad(dlogit_error, aw), dw_error = cpu::ref::matmul_wgrad(dlogit_error, ax);
    for (size_t j = 0; j < result.dx.size(); ++j) result.dx[j] += 1.01 * dx_error.data[j];
    for (size_t j = 0; j < result.dw.size(); ++j) result.dw[j] += 1.01 * dw_error.data[j];
    return result;
  }
};

}  // namespace cistron::test
