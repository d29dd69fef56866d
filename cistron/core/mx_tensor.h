#pragma once
// Tensors in MXFP8. A value is element x scale, an E4M3 byte times a power of two that a block of values shares (OCP
// Microscaling v1.0; ops/mxfp8_format.h). Every operand of a product is laid out along its contraction:
//   rows:    elements[r, k],            for products that contract over the last dim (forward: x and w)
//   columns: elements[k, r], transposed, for products that contract over the rows    (wgrad: x and dy; dgrad: w)
// Scale groups run along the contraction: `group` is 128 or 32 values, counted from 0. Rows are counted from the tensor's start;
// expert segments start at multiples of 128 (ops/groups.h), so no group of a transposed copy straddles two experts.
// Activations and gradients have a scale for each row and group. Weights share it among neighbouring rows too: 128 for group 128,
// 96 for group 32, counted afresh in each of `sections` equal parts of the rows (gate and up), the last block of a part shorter.
#include <cstdint>

#include "cistron/core/tensor.h"

namespace cistron {

/// One operand, contraction last and contiguous.
struct MxOperand {
  Tensor elements;         // [R, K], or [E, R, K] for weights, u8
  Tensor scales;           // u8: [K / group, round_up(R, 128)]; weights [E, row_blocks(), K / group]
  int64_t group = 128;     ///< values along the contraction that share a scale
  int64_t block_rows = 1;  ///< rows that share a scale
  int64_t sections = 1;    ///< equal parts of the rows in which blocks are counted afresh

  [[nodiscard]] bool defined() const { return elements.defined(); }
  [[nodiscard]] bool is_weight() const { return elements.shape().rank() == 3; }
  [[nodiscard]] int64_t rows() const { return elements.dim(elements.shape().rank() - 2); }
  [[nodiscard]] int64_t depth() const { return elements.dim(elements.shape().rank() - 1); }
  [[nodiscard]] int64_t num_groups() const { return depth() / group; }
  /// Scale blocks along the rows of one expert's weight.
  [[nodiscard]] int64_t row_blocks() const;
  /// Where in `scales` the byte of elements[e, r, k] lies; e = 0 for activations.
  [[nodiscard]] int64_t scale_index(int64_t e, int64_t r, int64_t k) const;
};

/// Which of the two copies.
enum class MxCopy : uint8_t { kRows, kColumns };

/// A tensor in the copies that its products need; either may be undefined.
struct MxTensor {
  MxOperand rows;
  MxOperand columns;
};

}  // namespace cistron
