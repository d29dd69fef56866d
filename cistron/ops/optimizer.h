#pragma once
// The update, for all parameters in one call. Numbers that change by step are read from `StepState` on the device.
//   norm:  grad_norm = sqrt(sum of squares of all gradients), in f64, in a fixed order;  clip_factor = min(1, clip_norm /
//   (grad_norm + 1e-6))
//          (clip_norm 0: factor 1), as torch.nn.utils.clip_grad_norm_;  finite = isfinite(grad_norm)
//   AdamW: m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, g the clipped gradient;
//          p -= lr decay p;  p -= lr (m / c1) / (sqrt(v / c2) + eps), c = 1 - b^step. Loshchilov & Hutter, "Decoupled weight
//          decay regularization" (2019), in torch.optim.AdamW's order. Nothing is touched when `finite` is 0.
//          Computed in f32; what is kept in less is rounded stochastically (optimizer_format.h). MXFP8 copies of a weight are
//          made of the updated master, as mxfp8_quantize_weights makes them.
#include <span>

#include "cistron/core/context.h"
#include "cistron/core/step_state.h"
#include "cistron/ops/mxfp8.h"
#include "cistron/ops/optimizer_format.h"

namespace cistron::ops {

/// Elements of a gradient that CUDA sums in one go.
constexpr int64_t kNormPiece = int64_t{1} << 16;

struct GradNorm {
  std::span<const Tensor> grads;  // f32
  StepState* state;               // on the device; grad_norm, clip_factor, finite are written
  Tensor partial = {};            // scratch of the operation's own on CUDA; callers leave it undefined
};
void grad_norm(Context& ctx, const GradNorm& args);

/// grad_norm in two halves, for ranks that hold parts of the gradients: between them the parts' sums are added up.
struct SumOfSquares {
  std::span<const Tensor> grads;  // f32
  const Tensor& out;              // [1] f64, written
  Tensor partial = {};            // as GradNorm's
};
void sum_of_squares(Context& ctx, const SumOfSquares& args);
struct NormOfSquares {
  const Tensor& squares;  // [n] f64, of which the sum counts
  StepState* state;       // as GradNorm
};
void norm_of_squares(Context& ctx, const NormOfSquares& args);

/// Matrices, or stacks of them: rows are counted over all dims but the last. A vector is one row.
struct AdamWTensor {
  Tensor master;          // f32, or bf16: no master, but the weight itself; updated
  Tensor grad;            // f32
  Tensor m = {}, v = {};  // both f32, bf16, or 8-bit codes in u8; updated
  Tensor working = {};    // bf16 copy refreshed from an f32 master, or undefined
  float weight_decay = 0.0F;
  Tensor m_scale = {}, v_scale = {};  // of codes: u8 [rows, ceil(last dim / kStateBlock)], updated
  uint64_t stream = 0;                // the parameter's, and the number of the first row in the whole of it: what rounds
  int64_t first_row = 0;              // stochastically depends on them and the step, not on how the parameter is cut over ranks
  MxTensor mx = {};                   // both copies of an f32 master, which is all of a parameter; or undefined
};
/// Its master as the quantiser takes weights, where it has copies: [E, N, K].
Tensor quantized_master(const AdamWTensor& tensor);

/// How the update is cut: into units of `kStateBlock` elements of a row, the last one of each shorter. Where all is f32 rows
/// don't matter, unless they are quantised, and the whole is one.
struct StateRows {
  int64_t rows = 0, width = 0;
  [[nodiscard]] int64_t units_of_row() const { return (width + kStateBlock - 1) / kStateBlock; }
  [[nodiscard]] int64_t units() const { return rows * units_of_row(); }
};
StateRows state_rows(const AdamWTensor& tensor);
/// The shape of the scales for codes of a tensor of this shape.
Shape scale_shape(const Shape& shape);

struct AdamW {
  std::span<const AdamWTensor> tensors;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float eps = 1e-8F;
  const StepState* state;  // on the device
};
void adamw(Context& ctx, const AdamW& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void grad_norm(Context& ctx, const ops::GradNorm& args);
void sum_of_squares(Context& ctx, const ops::SumOfSquares& args);
void norm_of_squares(Context& ctx, const ops::NormOfSquares& args);
void adamw(Context& ctx, const ops::AdamW& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void grad_norm(Context& ctx, const ops::GradNorm& args);
void sum_of_squares(Context& ctx, const ops::SumOfSquares& args);
void norm_of_squares(Context& ctx, const ops::NormOfSquares& args);
void adamw(Context& ctx, const ops::AdamW& args);
}  // namespace cistron::cuda
