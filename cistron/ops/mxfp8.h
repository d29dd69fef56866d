#pragma once
// Tensors in MXFP8 and how they are made. A value is element x scale, an E4M3 byte times a power of two that a block of values
// shares (`mxfp8_format.h`). Every operand of a product is laid out along its contraction:
//   rows:    elements[r, k],            for products that contract over the last dim (forward: x and w)
//   columns: elements[k, r], transposed, for products that contract over the rows    (wgrad: x and dy; dgrad: w)
// Both copies are made from the same high-precision values, never one from the other.
//
// Scale groups run along the contraction: `group` is 128 or 32 values, counted from 0. Rows are counted from the tensor's start;
// expert segments start at multiples of 128 (`Groups`), so no group of a transposed copy straddles two experts.
// Activations and gradients have a scale for each row and group. Weights share it among neighbouring rows too: 128 for group 128,
// 96 for group 32, counted afresh in each of `sections` equal parts of the rows (gate and up), the last block of a part shorter.
//
// Quantise: block scale s = e8m0(amax); element = e4m3(value / s), to nearest even. A block of zeros has scale 0x00. A NaN makes
// its block decode to NaN; an infinity saturates to 448 x 2^127, which is infinite in f32. Source: OCP Microscaling v1.0; arXiv
// 2506.08027.
#include "cistron/ops/groups.h"

namespace cistron::ops {

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

/// A tensor in the copies that its products need; either may be undefined.
struct MxTensor {
  MxOperand rows;
  MxOperand columns;
};

/// Throws, tagged with `op`, unless group, block and scales fit the elements.
void check_operand(const char* op, const MxOperand& operand);

struct MxCopies {
  bool rows = true;
  bool columns = true;
};

/// Uninitialised, for an activation or gradient [R, K]. The transposed copy is [K, round_up(R, 128)].
MxTensor mxfp8_empty(const Context& ctx, int64_t rows, int64_t depth, int64_t group, MxCopies copies = {});
/// Uninitialised, for weights [E, N, K] whose N rows are `sections` equal parts. The transposed copy [E, K, N] has one section.
MxTensor mxfp8_empty_weights(const Context& ctx, const Shape& shape, int64_t group, int64_t sections, MxCopies copies = {});

/// out = x, or with `source_row` out[r, :] = x[source_row[r], :], and zeros where that is -1. K must be a multiple of the group;
/// R need not be: what a copy holds past row R is zeros. With `starts`, rows from starts[E] (a multiple of 128) on are neither
/// read nor written.
struct Mxfp8Quantize {
  const Tensor& x;  // [T, K], f32 or bf16; T = R without source_row
  const MxTensor& out;
  Tensor source_row = {};  // [R] i32
  Tensor starts = {};      // [E + 1] i32, `Groups::starts`
};
void mxfp8_quantize(Context& ctx, const Mxfp8Quantize& args);

struct Mxfp8QuantizeWeights {
  const Tensor& w;  // [E, N, K], f32 or bf16
  const MxTensor& out;
};
void mxfp8_quantize_weights(Context& ctx, const Mxfp8QuantizeWeights& args);

/// out[i] = element x scale, in f32 (exact, except where it overflows) or bf16 (rounded).
struct Mxfp8Dequantize {
  const MxOperand& x;
  const Tensor& out;  // the shape of x.elements
};
void mxfp8_dequantize(Context& ctx, const Mxfp8Dequantize& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void mxfp8_quantize(Context& ctx, const ops::Mxfp8Quantize& args);
void mxfp8_quantize_weights(Context& ctx, const ops::Mxfp8QuantizeWeights& args);
void mxfp8_dequantize(Context& ctx, const ops::Mxfp8Dequantize& args);
}  // namespace cistron::cpu

// sm_80 and later; every byte equals the CPU's. Group 128 wants weights whose sections are multiples of 128 rows.
namespace cistron::cuda {
void mxfp8_quantize(Context& ctx, const ops::Mxfp8Quantize& args);
void mxfp8_quantize_weights(Context& ctx, const ops::Mxfp8QuantizeWeights& args);
void mxfp8_dequantize(Context& ctx, const ops::Mxfp8Dequantize& args);
}  // namespace cistron::cuda
