#pragma once
// The operands of the references: plain arrays, indexed without tricks. With S = double a reference is the float64 oracle.
#include <cstdint>
#include <utility>
#include <vector>

namespace cistron::cpu::ref {

template <class S>
struct Matrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<S> data;

  Matrix() = default;
  Matrix(int64_t r, int64_t c) : rows(r), cols(c), data(static_cast<size_t>(r * c), S(0)) {}
  Matrix(int64_t r, int64_t c, std::vector<S> values) : rows(r), cols(c), data(std::move(values)) {}
  S& operator()(int64_t r, int64_t c) { return data[static_cast<size_t>(r * cols + c)]; }
  const S& operator()(int64_t r, int64_t c) const { return data[static_cast<size_t>(r * cols + c)]; }
};

}  // namespace cistron::cpu::ref
