#pragma once
// SwiGLU times routing weight, on routed rows. With g = gate_up[r, 0:F], u = gate_up[r, F:2F], s = silu(g) = g / (1 + exp(-g)):
//   forward:  y[r, :] = s u weight[r]
//   backward: dg = dy weight u (sigma(g) (1 + g (1 - sigma(g)))),  du = dy weight s,  dweight[r] = sum over F of dy s u
// Arithmetic in f32. Pad rows of outputs are zeros. Shazeer, "GLU variants improve transformer" (2020).
#include "cistron/ops/groups.h"

namespace cistron::ops {

struct ScaledSwigluForward {
  const Tensor& gate_up;  // [R, 2F]
  const Groups& groups;
  const Tensor& out;  // [R, F]
};
void scaled_swiglu_forward(Context& ctx, const ScaledSwigluForward& args);

struct ScaledSwigluBackward {
  const Tensor& dy;       // [R, F]
  const Tensor& gate_up;  // [R, 2F]
  const Groups& groups;
  const Tensor& dgate_up;           // [R, 2F]
  const Tensor& dweight;            // [R] f32
  bool accumulate_dweight = false;  // add to dweight: another gradient of the routing weights is already there
};
void scaled_swiglu_backward(Context& ctx, const ScaledSwigluBackward& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void scaled_swiglu_forward(Context& ctx, const ops::ScaledSwigluForward& args);
void scaled_swiglu_backward(Context& ctx, const ops::ScaledSwigluBackward& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void scaled_swiglu_forward(Context& ctx, const ops::ScaledSwigluForward& args);
void scaled_swiglu_backward(Context& ctx, const ops::ScaledSwigluBackward& args);
}  // namespace cistron::cuda
