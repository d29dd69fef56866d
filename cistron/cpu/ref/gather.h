#pragma once
#include "cistron/cpu/ref/matrix.h"

namespace cistron::cpu::ref {

/// A row for each of `source_row`; -1: zeros.
template <class S>
Matrix<S> gather(const Matrix<S>& x, const std::vector<int32_t>& source_row) {
  Matrix<S> out(static_cast<int64_t>(source_row.size()), x.cols);
  for (int64_t r = 0; r < out.rows; ++r) {
    const int32_t t = source_row[static_cast<size_t>(r)];
    for (int64_t h = 0; h < x.cols; ++h) out(r, h) = t < 0 ? S(0) : x(t, h);
  }
  return out;
}

/// out is added to.
template <class S>
void combine(const Matrix<S>& x, const Matrix<int32_t>& token_rows, Matrix<S>& out) {
  for (int64_t t = 0; t < token_rows.rows; ++t)
    for (int64_t j = 0; j < token_rows.cols; ++j)
      for (int64_t h = 0; h < x.cols && token_rows(t, j) >= 0; ++h) out(t, h) += x(token_rows(t, j), h);
}

}  // namespace cistron::cpu::ref
