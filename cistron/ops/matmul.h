#pragma once
// Dense products of a linear layer y = x w^T. Operands f32 or bf16 (both the same); accumulation in f32.
//   forward: y[M, N]  = x[M, K] w[N, K]^T
//   dgrad:   dx[M, K] = dy[M, N] w[N, K]
//   wgrad:   dw[N, K] = dy[M, N]^T x[M, K]      (dw f32)
// `out` has the operands' dtype or f32; with `accumulate` the product is added to it (f32 out only). `out` must not alias an
// operand. Any sizes, 0 included (a contraction over nothing gives zeros, or leaves an accumulator alone).
// On the CPU in f32 a row of y or dx has the same bits whatever other rows are there, for any number of threads.
#include "cistron/core/context.h"

namespace cistron::ops {

/// What a dense product on a card may use beside its operands: partial sums of a contraction that is cut into parts.
constexpr int64_t kDenseWorkspaceBytes = int64_t{32} << 20;
/// That many bytes where a card is the target, undefined elsewhere.
Tensor dense_workspace(const Context& ctx);

struct MatmulForward {
  const Tensor& x;    // [M, K]
  const Tensor& w;    // [N, K]
  const Tensor& out;  // [M, N]
  bool accumulate = false;
  Tensor workspace = {};  // the operation's own; callers leave it undefined
};
void matmul_forward(Context& ctx, const MatmulForward& args);

struct MatmulDgrad {
  const Tensor& dy;   // [M, N]
  const Tensor& w;    // [N, K]
  const Tensor& out;  // [M, K]
  bool accumulate = false;
  Tensor workspace = {};  // the operation's own; callers leave it undefined
};
void matmul_dgrad(Context& ctx, const MatmulDgrad& args);

struct MatmulWgrad {
  const Tensor& dy;   // [M, N]
  const Tensor& x;    // [M, K]
  const Tensor& out;  // [N, K] f32
  bool accumulate = false;
  Tensor workspace = {};  // the operation's own; callers leave it undefined
};
void matmul_wgrad(Context& ctx, const MatmulWgrad& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void matmul_forward(Context& ctx, const ops::MatmulForward& args);
void matmul_dgrad(Context& ctx, const ops::MatmulDgrad& args);
void matmul_wgrad(Context& ctx, const ops::MatmulWgrad& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void matmul_forward(Context& ctx, const ops::MatmulForward& args);
void matmul_dgrad(Context& ctx, const ops::MatmulDgrad& args);
void matmul_wgrad(Context& ctx, const ops::MatmulWgrad& args);
}  // namespace cistron::cuda
