#pragma once
// `grouped_swiglu.h` in MXFP8, scale groups of 128: the two products of an expert MLP that have SwiGLU beside them, which give
// the next products' operands already quantised. With s(g) = silu(g), e a row's expert:
//   forward:  [g, u][r, :] = x[r, :] w[e]^T + bias[e];   act[r, :] = s(g) u weight[r], along its rows
//   backward: d[r, :] = dy[r, :] w[e];   dg = d weight[r] u s'(g),  du = d weight[r] s(g),  dweight[r] = sum over F of d s(g) u;
//             dbias[e] = sum over its rows of [dg, du] (grouped_bias.h), as rounded to bf16;
//             [dg, du] along its rows (dgrad of the first product) and transposed (its wgrad), act again, transposed (wgrad of
//             the second)
// That is mxfp8_grouped_gemm into bf16, scaled_swiglu_forward or _backward on bf16, and mxfp8_quantize: gate_up, act and dgate_up
// have the bits of these three on the same device, and what they leave unwritten past starts[E] stays so. dweight is summed in
// another order (a fixed one): equal up to that. gate_up is packed, as there.
// Pad rows of act, dgate_up and dweight are zeros; x and dy may hold anything there. Outputs must not alias operands.
#include <string>

#include "cistron/ops/mxfp8_grouped_gemm.h"

namespace cistron::ops {

struct Mxfp8GroupedSwigluForward {
  const MxOperand& x;  // [R, H]
  const MxOperand& w;  // [E, 2F, H], gate then up, in 2 sections
  const Groups& groups;
  const Tensor& gate_up;  // [P, 2F] bf16
  const MxOperand& act;   // [R, F]
  Tensor bias = {};       // [E, 2F] f32; undefined: none
  // scratch of the operation's own: callers leave it undefined
  Tensor gate_up_rows = {};  // [R, 2F] bf16: gate_up with pad rows
  Tensor values = {};        // [R, F] bf16
  MxDecoded product = {};
};
void mxfp8_grouped_swiglu_forward(Context& ctx, const Mxfp8GroupedSwigluForward& args);

struct Mxfp8GroupedSwigluBackward {
  const MxOperand& dy;    // [R, H]
  const MxOperand& w;     // [E, F, H], the transposed copy of the down projection
  const Tensor& gate_up;  // [P, 2F] bf16
  const Groups& groups;
  const MxTensor& dgate_up;  // [R, 2F], both copies
  const MxOperand& act;      // [F, R], the transposed copy
  const Tensor& dweight;     // [R] f32
  GradSink dbias = {};       // [E, 2F] f32; undefined: none wanted
  // scratch of the operation's own: callers leave it undefined
  Tensor d = {};               // [R, F] bf16
  Tensor gate_up_rows = {};    // [R, 2F] bf16: gate_up with pad rows
  Tensor values = {};          // [R, 2F] bf16
  Tensor partials = {};        // [F / 128, R]: parts of dweight
  Tensor dbias_partials = {};  // dbias by tiles of rows
  MxDecoded product = {};
};
void mxfp8_grouped_swiglu_backward(Context& ctx, const Mxfp8GroupedSwigluBackward& args);

/// Empty where the device that this context computes on, or plans for, has both products for experts of H to F with these scale
/// groups; otherwise why not.
std::string mxfp8_grouped_swiglu_refusal(const Context& ctx, int64_t group, int64_t hidden, int64_t intermediate);

}  // namespace cistron::ops

namespace cistron::cpu {
void mxfp8_grouped_swiglu_forward(Context& ctx, const ops::Mxfp8GroupedSwigluForward& args);
void mxfp8_grouped_swiglu_backward(Context& ctx, const ops::Mxfp8GroupedSwigluBackward& args);
}  // namespace cistron::cpu

// Hopper alone.
namespace cistron::cuda {
void mxfp8_grouped_swiglu_forward(Context& ctx, const ops::Mxfp8GroupedSwigluForward& args);
void mxfp8_grouped_swiglu_backward(Context& ctx, const ops::Mxfp8GroupedSwigluBackward& args);
/// Of the card alone: sizes are for `ops::mxfp8_grouped_swiglu_refusal`, which callers ask first.
std::string mxfp8_grouped_swiglu_refusal(const Context& ctx);
}  // namespace cistron::cuda
