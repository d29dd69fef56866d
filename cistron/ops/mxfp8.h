#pragma once
// How tensors in MXFP8 (core/mx_tensor.h) are made. Both copies are made from the same high-precision values, never one from the
// other.
//
// Quantise: block scale s = e8m0(amax); element = e4m3(value / s), to nearest even. A block of zeros has scale 0x00. A NaN makes
// its block decode to NaN; an infinity saturates to 448 x 2^127, which is infinite in f32. Source: OCP Microscaling v1.0; arXiv
// 2506.08027.
#include "cistron/core/mx_tensor.h"
#include "cistron/ops/groups.h"

namespace cistron::ops {

using cistron::MxOperand;
using cistron::MxTensor;

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
/// read nor written. With `rstd` out is the norm's output (ops/rms_norm.h), x[r, k] rstd[r] norm_weight[k], as rounded to x's
/// dtype: every byte is that of rms_norm_forward's `out`; group 128, no `source_row`.
struct Mxfp8Quantize {
  const Tensor& x;  // [T, K], f32 or bf16; T = R without source_row
  const MxTensor& out;
  Tensor source_row = {};   // [R] i32
  Tensor starts = {};       // [E + 1] i32, `Groups::starts`
  Tensor rstd = {};         // [R] f32
  Tensor norm_weight = {};  // [K] f32
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
