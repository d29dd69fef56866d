#pragma once
#include "cistron/cpu/fast/products.h"
#include "cistron/ops/grouped_bias.h"

namespace cistron::cpu {

/// An expert's bias, as its rows take it.
struct RowBias {
  const float* values = nullptr;  // [N]; null: none
  const float* scale = nullptr;   // of row 0 on; null: 1

  static RowBias of(const ops::ExpertBias& bias, const ops::Groups& groups, int64_t expert) {
    if (!bias.values.defined()) return {};
    return {bias.values.data<float>() + expert * bias.values.dim(1), bias.scaled ? groups.weight.data<float>() : nullptr};
  }
  [[nodiscard]] float of_row(int64_t r) const { return scale == nullptr ? 1.0F : scale[r]; }
};

/// A tile of a product with w^T, plus the bias: rounded once.
void row_product(const RowProduct& product, const RowBias& bias, Range rows, Range columns);

}  // namespace cistron::cpu
