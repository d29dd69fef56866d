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
  const Tensor& out;   // [T, H], x's dtype
  const Tensor& rstd;  // [T] f32
};
void rms_norm_forward(Context& ctx, const RmsNormForward& args);

struct RmsNormBackward {
  const Tensor& dy;            // [T, H]
  const Tensor& x;             // [T, H]
  const Tensor& w;             // [H] f32
  const Tensor& rstd;          // [T] f32
  const Tensor& dx;            // [T, H]
  bool accumulate_dx = false;  // add to dx: the residual branch is already there
  GradSink dw;                 // [H] f32
};
void rms_norm_backward(Context& ctx, const RmsNormBackward& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void rms_norm_forward(Context& ctx, const ops::RmsNormForward& args);
void rms_norm_backward(Context& ctx, const ops::RmsNormBackward& args);
}  // namespace cistron::cpu
