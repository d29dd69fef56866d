#pragma once
// The products of E linear layers in one launch, rows grouped by expert (`Groups`). Operands f32 or bf16 (both the same);
// accumulation in f32. For each expert e and its rows r:
//   forward: y[r, :]  = x[r, :] w[e]^T        w [E, N, K]; plus a bias, where there is one (`grouped_bias.h`)
//   dgrad:   dx[r, :] = dy[r, :] w[e]
//   wgrad:   dw[e]    = sum over r of dy[r, :]^T x[r, :]   (f32; zeros, or an untouched accumulator, for an expert without rows)
// Pad rows of outputs may hold anything. Outputs must not alias operands. Any counts, 0 included.
// dy and x of wgrad hold zeros in pad rows, which kernels that contract whole tiles read; other operands may hold anything there.
// Throws where shapes or dtypes do not fit, and on a card in bf16 where N or K is no multiple of 8 (rows of 16 bytes).
#include "cistron/ops/grouped_bias.h"

namespace cistron::ops {

struct GroupedGemmForward {
  const Tensor& x;  // [R, K]
  const Tensor& w;  // [E, N, K]
  const Groups& groups;
  const Tensor& out;     // [R, N], operands' dtype or f32
  ExpertBias bias = {};  // [E, N]
};
void grouped_gemm_forward(Context& ctx, const GroupedGemmForward& args);

struct GroupedGemmDgrad {
  const Tensor& dy;  // [R, N]
  const Tensor& w;   // [E, N, K]
  const Groups& groups;
  const Tensor& out;  // [R, K], operands' dtype or f32
};
void grouped_gemm_dgrad(Context& ctx, const GroupedGemmDgrad& args);

struct GroupedGemmWgrad {
  const Tensor& dy;  // [R, N]
  const Tensor& x;   // [R, K]
  const Groups& groups;
  const Tensor& out;  // [E, N, K] f32
  bool accumulate = false;
};
void grouped_gemm_wgrad(Context& ctx, const GroupedGemmWgrad& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void grouped_gemm_forward(Context& ctx, const ops::GroupedGemmForward& args);
void grouped_gemm_dgrad(Context& ctx, const ops::GroupedGemmDgrad& args);
void grouped_gemm_wgrad(Context& ctx, const ops::GroupedGemmWgrad& args);
}  // namespace cistron::cpu

// Hopper's own kernels for bf16 there, the portable ones for f32 and on other cards since sm_80.
namespace cistron::cuda {
void grouped_gemm_forward(Context& ctx, const ops::GroupedGemmForward& args);
void grouped_gemm_dgrad(Context& ctx, const ops::GroupedGemmDgrad& args);
void grouped_gemm_wgrad(Context& ctx, const ops::GroupedGemmWgrad& args);
}  // namespace cistron::cuda
