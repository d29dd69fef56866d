#include "cistron/core/shape.h"

#include <fmt/format.h>

#include "cistron/core/checked.h"

namespace cistron {

Shape::Shape(std::initializer_list<int64_t> dims) {
  for (const int64_t dim : dims) append(dim);
}

void Shape::append(int64_t dim) {
  CISTRON_CHECK(rank_ < kMaxRank, "a tensor has at most {} dims", kMaxRank);
  set(rank_++, dim);
}

void Shape::set(int dim, int64_t size) {
  CISTRON_CHECK(size >= 0, "dim {} is negative: {}", dim, size);
  dims_[static_cast<size_t>(dim)] = size;
}

int64_t Shape::numel() const {
  int64_t product = 1;
  for (int i = 0; i < rank_; ++i) product = checked_mul(product, (*this)[i]);
  return product;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

}  // namespace cistron
