// Attention on ordinary cores in f32 (ops/attention.h); the plan of the two kernels is that of flash_mma_forward.cu and
// flash_mma_backward.cu.
#include <cmath>

#include "cistron/cuda/attention/flash.h"
#include "cistron/cuda/attention/flash_simt.cuh"

namespace cistron::cuda::flash {
namespace {

using namespace simt;  // NOLINT(google-build-using-namespace)

/// The largest score of a thread's rows so far, and the sums of exp(score - largest).
template <int kR>
struct OnlineSoftmax {
  float max[kR];
  float sum[kR];
  __device__ OnlineSoftmax() {
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      max[i] = -INFINITY;
      sum[i] = 0;
    }
  }
  /// Scaled scores, -inf where masked, become probabilities over the new largest; `out` shrinks with it.
  template <int kOwn>
  __device__ __forceinline__ void take(float (&scores)[kR][kR], float (&out)[kR][kOwn]) {
#pragma unroll
    for (int i = 0; i < kR; ++i) {
      float now = max[i];
#pragma unroll
      for (int j = 0; j < kR; ++j) now = fmaxf(now, scores[i][j]);
      now = reduce_row(now, [](float a, float b) { return fmaxf(a, b); });
      const float offset = now == -INFINITY ? 0.0F : now;  // a row that has met nothing yet
      float total = 0;
#pragma unroll
      for (int j = 0; j < kR; ++j) {
        scores[i][j] = expf(scores[i][j] - offset);
        total += scores[i][j];
      }
      const float shrink = expf(max[i] - offset);
      sum[i] = fmaf(sum[i], shrink, reduce_row(total, [](float a, float b) { return a + b; }));
      max[i] = now;
#pragma unroll
      for (int c = 0; c < kOwn; ++c) out[i][c] *= shrink;
    }
  }
};

template <class Tile, class T>
__global__ void __launch_bounds__(kThreads) simt_forward_kernel(const ForwardProblem<T> p) {
  constexpr int kR = Tile::kR;
  extern __shared__ __align__(16) float shared_floats[];
  float* queries = shared_floats;
  float* keys = queries + Tile::kOperand;
  float* values = keys + Tile::kOperand;
  float* turned = values + Tile::kOperand;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::kTile;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / p.heads.group();
  const int dim = p.heads.dim;
  const int tokens = p.sequences.tokens;

  fetch<Tile>(queries, p.in.q.head(head, dim), p.in.q.pitch, first, tokens, dim);
  Range range[kR];
#pragma unroll
  for (int i = 0; i < kR; ++i) range[i] = columns_of<false>(p.sequences, first + thread_y() * kR + i);
  const int end = columns_of<false>(p.sequences, first + Tile::kTile - 1).end;
  OnlineSoftmax<kR> softmax;
  float out[kR][Tile::kOwn] = {};
  for (int column = columns_of<false>(p.sequences, first).begin; column < end; column += Tile::kTile) {
    __syncthreads();
    fetch<Tile>(keys, p.in.k.head(kv_head, dim), p.in.k.pitch, column, tokens, dim);
    fetch<Tile>(values, p.in.v.head(kv_head, dim), p.in.v.pitch, column, tokens, dim);
    __syncthreads();
    float scores[kR][kR];
    multiply_rows<Tile>(scores, queries, keys);
#pragma unroll
    for (int i = 0; i < kR; ++i)
#pragma unroll
      for (int j = 0; j < kR; ++j) {
        const int at = column + thread_x() + 16 * j;
        scores[i][j] = at >= range[i].begin && at < range[i].end ? scores[i][j] * p.scale : -INFINITY;
      }
    softmax.take(scores, out);
    turn<Tile>(turned, scores);
    __syncthreads();
    add_product<Tile>(out, turned, values);
  }
  float factor[kR];
#pragma unroll
  for (int i = 0; i < kR; ++i) {
    const int row = first + thread_y() * kR + i;
    factor[i] = softmax.sum[i] > 0 ? 1.0F / softmax.sum[i] : 0.0F;
    if (thread_x() == 0 && row < tokens) p.lse[static_cast<int64_t>(head) * tokens + row] = softmax.max[i] + logf(softmax.sum[i]);
  }
  store<Tile>(out, factor, p.out.head(head, dim), p.out.pitch, first, tokens, dim);
}

template <class Tile, class T, bool kByKey>
__global__ void __launch_bounds__(kThreads) simt_backward_kernel(const BackwardProblem<T> p) {
  constexpr int kR = Tile::kR;
  extern __shared__ __align__(16) float shared_floats[];
  float* rows1 = shared_floats;
  float* rows2 = rows1 + Tile::kOperand;
  float* columns1 = rows2 + Tile::kOperand;
  float* columns2 = columns1 + Tile::kOperand;
  float* turned = columns2 + Tile::kOperand;
  const int first = static_cast<int>(kByKey ? blockIdx.x : gridDim.x - 1 - blockIdx.x) * Tile::kTile;
  const int head = static_cast<int>(blockIdx.y);
  const int group = p.heads.group();
  const int dim = p.heads.dim;
  const int tokens = p.sequences.tokens;
  const auto& row_heads1 = kByKey ? p.in.k : p.in.q;
  const auto& row_heads2 = kByKey ? p.in.v : p.dout;
  const auto& column_heads1 = kByKey ? p.in.q : p.in.k;
  const auto& column_heads2 = kByKey ? p.dout : p.in.v;

  fetch<Tile>(rows1, row_heads1.head(head, dim), row_heads1.pitch, first, tokens, dim);
  fetch<Tile>(rows2, row_heads2.head(head, dim), row_heads2.pitch, first, tokens, dim);
  Range range[kR];
#pragma unroll
  for (int i = 0; i < kR; ++i) range[i] = columns_of<kByKey>(p.sequences, first + thread_y() * kR + i);
  const int begin = columns_of<kByKey>(p.sequences, first).begin;
  const int end = columns_of<kByKey>(p.sequences, first + Tile::kTile - 1).end;
  float sums1[kR][Tile::kOwn] = {};
  float sums2[kR][Tile::kOwn] = {};  // dv; unused by queries
  for (int h = 0; h < (kByKey ? group : 1); ++h) {
    const int column_head = kByKey ? head * group + h : head / group;
    const int64_t statistics = static_cast<int64_t>(kByKey ? column_head : head) * tokens;  // lse and delta belong to queries
    for (int column = begin; column < end; column += Tile::kTile) {
      __syncthreads();
      fetch<Tile>(columns1, column_heads1.head(column_head, dim), column_heads1.pitch, column, tokens, dim);
      fetch<Tile>(columns2, column_heads2.head(column_head, dim), column_heads2.pitch, column, tokens, dim);
      __syncthreads();
      float scores[kR][kR];
      float dp[kR][kR];
      multiply_rows<Tile>(scores, rows1, columns1);
      multiply_rows<Tile>(dp, rows2, columns2);
#pragma unroll
      for (int i = 0; i < kR; ++i)
#pragma unroll
        for (int j = 0; j < kR; ++j) {
          const int at = column + thread_x() + 16 * j;
          const bool meets = at >= range[i].begin && at < range[i].end;
          const int64_t query = statistics + (kByKey ? at : first + thread_y() * kR + i);
          scores[i][j] = meets ? expf(scores[i][j] * p.scale - p.lse[query]) : 0.0F;
          dp[i][j] = meets ? scores[i][j] * (dp[i][j] - p.delta[query]) : 0.0F;
        }
      if (kByKey) {
        turn<Tile>(turned, scores);
        __syncthreads();
        add_product<Tile>(sums2, turned, columns2);
        __syncthreads();
      }
      turn<Tile>(turned, dp);
      __syncthreads();
      add_product<Tile>(sums1, turned, columns1);
    }
  }
  float one[kR];
  float scaled[kR];
#pragma unroll
  for (int i = 0; i < kR; ++i) {
    one[i] = 1;
    scaled[i] = p.scale;
  }
  const auto& grad = kByKey ? p.grad.k : p.grad.q;
  store<Tile>(sums1, scaled, grad.head(head, dim), grad.pitch, first, tokens, dim);
  if (kByKey) store<Tile>(sums2, one, p.grad.v.head(head, dim), p.grad.v.pitch, first, tokens, dim);
}

template <class Tile>
dim3 blocks(int tokens, int heads) {
  return {static_cast<unsigned>(ceil_div(tokens, Tile::kTile)), static_cast<unsigned>(heads)};
}

template <class Tile, class T>
void launch_forward(Context& ctx, const ForwardProblem<T>& p) {
  launch(ctx, simt_forward_kernel<Tile, T>, blocks<Tile>(p.sequences.tokens, p.heads.count), kThreads,
         (3 * Tile::kOperand + Tile::kTurned) * 4, p);
}

template <class Tile, class T>
void launch_backward(Context& ctx, const BackwardProblem<T>& p) {
  constexpr int kBytes = (4 * Tile::kOperand + Tile::kTurned) * 4;
  launch(ctx, simt_backward_kernel<Tile, T, true>, blocks<Tile>(p.sequences.tokens, p.heads.kv_count), kThreads, kBytes, p);
  launch(ctx, simt_backward_kernel<Tile, T, false>, blocks<Tile>(p.sequences.tokens, p.heads.count), kThreads, kBytes, p);
}

/// f(Tile) for the narrowest tile that takes the heads.
template <class F>
void with_tile(int dim, F&& f) {
  if (dim <= 32) return f(Tile<32>{});
  if (dim <= 64) return f(Tile<64>{});
  if (dim <= 128) return f(Tile<128>{});
  f(Tile<256>{});
}

template <class T>
void forward(Context& ctx, const ops::AttentionForward& args) {
  const ForwardProblem<T> p(args);
  with_tile(p.heads.dim, [&](auto tile) { launch_forward<decltype(tile)>(ctx, p); });
}

template <class T>
void backward(Context& ctx, const ops::AttentionBackward& args) {
  const BackwardProblem<T> p(args);
  with_tile(p.heads.dim, [&](auto tile) { launch_backward<decltype(tile)>(ctx, p); });
}

}  // namespace

void simt_forward(Context& ctx, const ops::AttentionForward& args) {
  args.qkv.dtype() == DType::kF32 ? forward<float>(ctx, args) : forward<__nv_bfloat16>(ctx, args);
}

void simt_backward(Context& ctx, const ops::AttentionBackward& args) {
  args.qkv.dtype() == DType::kF32 ? backward<float>(ctx, args) : backward<__nv_bfloat16>(ctx, args);
}

}  // namespace cistron::cuda::flash
