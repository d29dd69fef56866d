#pragma once
// The biases of E linear layers whose rows are grouped by expert (`Groups`). The products add them to their sums in f32, before
// they round (`grouped_gemm.h`, `mxfp8_grouped_gemm.h`, `grouped_swiglu.h`); with s[r] = 1, or weight[r] where they are scaled:
//   forward:  y[r, :] = x[r, :] w[e]^T + s[r] bias[e]
//   backward: dbias[e] = sum over its rows of s[r] dy[r, :]  (f32; zeros, or an untouched accumulator, for an expert without
//   rows)
//             dweight[r] = dy[r, :] . bias[e], where it is scaled; zeros in pad rows
// Scaled is the down projection's behind a scaled SwiGLU, whose activations have the routing weight in them already: a token's
// sum over its experts of weight (w h + bias). Sums in f32 in a fixed order. Pad rows of dy may hold anything.
#include "cistron/ops/groups.h"

namespace cistron::ops {

/// What a grouped product adds to its rows.
struct ExpertBias {
  Tensor values = {};   // [E, N] f32; undefined: nothing
  bool scaled = false;  // by the rows' routing weights
};
/// Throws, tagged with `op`, unless it is one of N = `width` values an expert.
void check_bias(const char* op, const ExpertBias& bias, const Groups& groups, int64_t width);

struct GroupedBiasBackward {
  const Tensor& dy;  // [R, N], or [T, N]: see `by_token`
  const ExpertBias& bias;
  const Groups& groups;
  const GradSink& dbias;            // [E, N] f32
  Tensor dweight = {};              // [R] f32, where it is scaled
  bool accumulate_dweight = false;  // add to dweight: another gradient of the routing weights is already there
  bool by_token = false;            // dy is in token order: row r's is dy[source_row[r], :]
  // scratch of the operation's own on CUDA: callers leave it undefined
  Tensor partials = {};      // dbias by tiles of rows
  Tensor row_partials = {};  // dweight by tiles of columns
};
void grouped_bias_backward(Context& ctx, const GroupedBiasBackward& args);

/// Rows and columns of a tile on CUDA.
constexpr int64_t kBiasTileRows = 128, kBiasTileColumns = 256;

}  // namespace cistron::ops

namespace cistron::cpu {
void grouped_bias_backward(Context& ctx, const ops::GroupedBiasBackward& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void grouped_bias_backward(Context& ctx, const ops::GroupedBiasBackward& args);
}  // namespace cistron::cuda
