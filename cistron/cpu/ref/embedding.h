#pragma once
#include "cistron/cpu/ref/matrix.h"

namespace cistron::cpu::ref {

template <class S>
Matrix<S> embedding_forward(const Matrix<S>& table, const std::vector<int32_t>& tokens) {
  Matrix<S> out(static_cast<int64_t>(tokens.size()), table.cols);
  for (int64_t t = 0; t < out.rows; ++t)
    for (int64_t h = 0; h < out.cols; ++h) out(t, h) = table(tokens[static_cast<size_t>(t)], h);
  return out;
}

/// dtable is added to.
template <class S>
void embedding_backward(const Matrix<S>& dy, const std::vector<int32_t>& tokens, Matrix<S>& dtable) {
  for (int64_t t = 0; t < dy.rows; ++t)
    for (int64_t h = 0; h < dy.cols; ++h) dtable(tokens[static_cast<size_t>(t)], h) += dy(t, h);
}

}  // namespace cistron::cpu::ref
