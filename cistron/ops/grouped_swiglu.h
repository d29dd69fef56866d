#pragma once
// The two products of an expert MLP that have SwiGLU beside them, with it in one launch: the activation is computed while its
// tile is at hand. Rows are grouped by expert (`Groups`); operands f32 or bf16 (all the same); with s(g) = silu(g):
//   forward:  [g, u][r, :] = x[r, :] w[e]^T + bias[e];   act[r, :] = s(g) u weight[r]
//   backward: d[r, :] = dy[r, :] w[e];   dg = d weight[r] u s'(g),  du = d weight[r] s(g),  dweight[r] = sum over F of d s(g) u,
//             and act[r, :] again, so that nobody keeps it
// That is grouped_gemm_forward + scaled_swiglu_forward, and grouped_gemm_dgrad + scaled_swiglu_backward + scaled_swiglu_forward.
// g and u are rounded to their dtype before the activation, as there; d stays in f32 on CUDA.
// gate_up, which is kept between the two, is packed (`groups.h`): P = groups.packed_rows(), nothing is written past the last row
// in use. Pad rows of act, dgate_up and dweight are zeros; x and dy may hold anything there. Outputs must not alias operands.
#include <string>

#include "cistron/ops/groups.h"

namespace cistron::ops {

struct GroupedSwigluForward {
  const Tensor& x;  // [R, H]
  const Tensor& w;  // [E, 2F, H], gate then up
  const Groups& groups;
  const Tensor& gate_up;  // [P, 2F]
  const Tensor& act;      // [R, F]
  Tensor bias = {};       // [E, 2F] f32, as the weights; undefined: none
};
void grouped_swiglu_forward(Context& ctx, const GroupedSwigluForward& args);

struct GroupedSwigluBackward {
  const Tensor& dy;       // [R, H]
  const Tensor& w;        // [E, H, F], the down projection
  const Tensor& gate_up;  // [P, 2F]
  const Groups& groups;
  const Tensor& dgate_up;  // [R, 2F]
  const Tensor& act;       // [R, F]
  const Tensor& dweight;   // [R] f32
  Tensor partials = {};    // [tiles of columns, R] scratch of the operation's own: parts of dweight; callers leave it undefined
};
void grouped_swiglu_backward(Context& ctx, const GroupedSwigluBackward& args);

/// Columns of F in a tile of the backward, of which dweight has a part each.
constexpr int64_t kSwigluTile = 256;

/// Empty where the device that this context computes on, or plans for, has both products for experts of H to F in its precision;
/// otherwise why not.
std::string grouped_swiglu_refusal(const Context& ctx, int64_t hidden, int64_t intermediate);

}  // namespace cistron::ops

namespace cistron::cpu {
void grouped_swiglu_forward(Context& ctx, const ops::GroupedSwigluForward& args);
void grouped_swiglu_backward(Context& ctx, const ops::GroupedSwigluBackward& args);
}  // namespace cistron::cpu

// Hopper alone, bf16.
namespace cistron::cuda {
void grouped_swiglu_forward(Context& ctx, const ops::GroupedSwigluForward& args);
void grouped_swiglu_backward(Context& ctx, const ops::GroupedSwigluBackward& args);
std::string grouped_swiglu_refusal(const Context& ctx, int64_t hidden, int64_t intermediate);
}  // namespace cistron::cuda
