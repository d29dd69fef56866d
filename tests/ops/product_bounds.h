#pragma once
// The error that a product of finite sums may have, element by element.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cistron/cpu/ref/matrix.h"
#include "tests/ops/support.h"

namespace cistron::test {

inline cpu::ref::Matrix<double> absolute(cpu::ref::Matrix<double> m) {
  for (double& value : m.data) value = std::abs(value);
  return m;
}

/// |err| <= (terms + 1) u sum |a||b| for f32 sums of `terms` products in any order (Higham, "Accuracy and Stability of Numerical
/// Algorithms", 3.1; one more for adding to an accumulator), plus one rounding of the result to `out`. `magnitude` is the same
/// product of the operands' absolute values. bf16 products are exact in f32 before they are added; but avx512_bf16 flushes
/// subnormals and rounds pairs to odd, so that a sum of pairs counts twice.
inline std::vector<double> product_bound(const cpu::ref::Matrix<double>& magnitude, int64_t terms, DType in, DType out) {
  const double u = unit_roundoff(DType::kF32) * (in == DType::kBF16 ? 2 : 1);
  const double growth = static_cast<double>(terms + 1) * u;
  const double last = out == DType::kBF16 ? unit_roundoff(DType::kBF16) * (1 + growth) : 0;
  std::vector<double> bound = magnitude.data;
  for (double& value : bound) value = value * (growth + last) + 1e-36;
  return bound;
}

}  // namespace cistron::test
