#pragma once
// The products of E linear layers in MXFP8, rows grouped by expert; as `grouped_gemm.h`, on the copy that each product contracts.
// For each expert e and its rows r:
//   forward: y[r, :]  = x[r, :] w[e]^T             x.rows, w.rows         (x [R, K], w [E, N, K])
//            plus a bias, where there is one (`grouped_bias.h`)
//   dgrad:   dx[r, :] = dy[r, :] w[e]              dy.rows, w.columns     the same product: the operand holds w[e]^T
//   wgrad:   dw[e]    = sum over r of dy[r]^T x[r]  dy.columns, x.columns  (f32)
// An expert without rows has a dw of zeros, or leaves its accumulator alone. All operands of a product have one group.
// Accumulation in f32, promoted from the tensor core at every 128 of the contraction at most. Pad rows of wgrad's operands must
// hold zeros (`mxfp8_quantize` with `source_row` writes them); all others may hold anything.
#include "cistron/ops/grouped_bias.h"
#include "cistron/ops/mxfp8.h"

namespace cistron::ops {

/// Scratch of the operations' own, where a device has no product of these bytes: callers leave it undefined. The CPU decodes to
/// f32 (the two copies of wgrad turned back), the portable kernels to bf16.
struct MxDecoded {
  Tensor a, b;  // the operands
  Tensor sum;   // [R, N] f32, before it is rounded to `out`
};

struct Mxfp8GroupedGemm {
  const MxOperand& x;  // [R, K]
  const MxOperand& w;  // [E, N, K]
  const Groups& groups;
  const Tensor& out;     // [R, N], bf16 or f32
  ExpertBias bias = {};  // [E, N]
  MxDecoded decoded = {};
};
void mxfp8_grouped_gemm(Context& ctx, const Mxfp8GroupedGemm& args);
/// That scratch, for operations that call a backend's product themselves.
MxDecoded mx_decoded(const Context& ctx, const Mxfp8GroupedGemm& args);

struct Mxfp8GroupedWgrad {
  const MxOperand& dy;  // [N, R]
  const MxOperand& x;   // [K, R]
  const Groups& groups;
  const Tensor& out;  // [E, N, K] f32
  bool accumulate = false;
  MxDecoded decoded = {};
};
void mxfp8_grouped_wgrad(Context& ctx, const Mxfp8GroupedWgrad& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void mxfp8_grouped_gemm(Context& ctx, const ops::Mxfp8GroupedGemm& args);
void mxfp8_grouped_wgrad(Context& ctx, const ops::Mxfp8GroupedWgrad& args);
}  // namespace cistron::cpu

// Hopper's own kernels there (contractions of multiples of 128 only: others are refused), the portable ones elsewhere since
// sm_80, which decode to bf16. wgrad of group 32 is refused: it runs in bf16 (`grouped_gemm_wgrad`).
namespace cistron::cuda {
/// Whether the products on this context's card decode their operands.
bool mxfp8_products_decode(const Context& ctx);
void mxfp8_grouped_gemm(Context& ctx, const ops::Mxfp8GroupedGemm& args);
void mxfp8_grouped_wgrad(Context& ctx, const ops::Mxfp8GroupedWgrad& args);
}  // namespace cistron::cuda
