#pragma once
// y = x rstd w with rstd = 1 / sqrt(mean(x^2) + eps), by row, in f32. Zhang & Sennrich, "Root mean square layer normalization"
// (2019).
//   dx = rstd (dy w - x rstd^2 mean(dy w x)),  dw = sum over rows of dy x rstd
#include "cistron/core/context.h"

namespace cistron::ops {

struct RmsNormForward {
  const Tensor& x;  // [T, H]
  const Tensor& w;  // [H] f32
  float eps = 1e-5F;
  const Tensor& out;   // [T, H], x's dtype; undefined: rstd alone is wanted
  const Tensor& rstd;  // [T] f32
};
void rms_norm_forward(Context& ctx, const RmsNormForward& args);

/// The residual's sum ahead of the norm, in one pass: sum = a + b in their dtype, out and rstd as above with x = sum.
struct AddRmsNormForward {
  const Tensor& a;  // [T, H]
  const Tensor& b;  // [T, H], a's dtype
  const Tensor& w;  // [H] f32
  float eps = 1e-5F;
  const Tensor& sum;   // [T, H], a's dtype; may alias a or b
  const Tensor& out;   // [T, H], a's dtype; undefined: not wanted
  const Tensor& rstd;  // [T] f32
};
void add_rms_norm_forward(Context& ctx, const AddRmsNormForward& args);

struct RmsNormBackward {
  const Tensor& dy;            // [T, H]
  const Tensor& x;             // [T, H]
  const Tensor& w;             // [H] f32
  const Tensor& rstd;          // [T] f32
  const Tensor& dx;            // [T, H]
  bool accumulate_dx = false;  // add to dx: the residual branch is already there
  GradSink dw;                 // [H] f32
  Tensor partial = {};         // scratch of the operation's own, sums of some rows by H; callers leave it undefined
};
void rms_norm_backward(Context& ctx, const RmsNormBackward& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void rms_norm_forward(Context& ctx, const ops::RmsNormForward& args);
void add_rms_norm_forward(Context& ctx, const ops::AddRmsNormForward& args);
void rms_norm_backward(Context& ctx, const ops::RmsNormBackward& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void rms_norm_forward(Context& ctx, const ops::RmsNormForward& args);
void add_rms_norm_forward(Context& ctx, const ops::AddRmsNormForward& args);
void rms_norm_backward(Context& ctx, const ops::RmsNormBackward& args);
}  // namespace cistron::cuda
