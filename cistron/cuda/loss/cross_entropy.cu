// The head's product and the cross-entropy by chunks of rows (ops/cross_entropy.h). A block or a warp has a row of logits: one
// pass for its largest and the sum of exponentials, one for the gradient, which finds the row in the L2 cache. All sums in a
// fixed order.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>

#include "cistron/core/checked.h"
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/ptx.cuh"
#include "cistron/cuda/gemm/dense.h"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/cross_entropy.h"

namespace cistron::cuda {
namespace {

using device::kWarp, device::put;

/// Of some logits: the largest, and the sum of exp(logit - largest). A NaN among them makes the sum NaN.
struct Softmax {
  float max = -INFINITY;
  float sum = 0;

  __device__ __forceinline__ void add(const Softmax& other) {
    const float now = fmaxf(max, other.max);
    if (now == -INFINITY) {
      sum += other.sum;  // zeros, or NaN
      return;
    }
    sum = sum * expf(max - now) + other.sum * expf(other.max - now);
    max = now;
  }
};

/// Of a row: kThreads neighbouring threads take turns at its elements, four at a time.
template <int kThreads>
__device__ __forceinline__ Softmax softmax_of_thread(const float* row, int n, int thread) {
  Softmax s;
  for (int first = thread; first < n; first += 4 * kThreads) {
    float x[4];
    float largest = s.max;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int v = first + i * kThreads;
      x[i] = v < n ? row[v] : -INFINITY;
      largest = fmaxf(largest, x[i]);
    }
    if (largest == -INFINITY) {  // nothing but what is past the end, or NaN, which fmaxf passes over
#pragma unroll
      for (int i = 0; i < 4; ++i) s.sum += isnan(x[i]) ? x[i] : 0.0F;
      continue;
    }
    s.sum *= expf(s.max - largest);
#pragma unroll
    for (int i = 0; i < 4; ++i) s.sum += expf(x[i] - largest);
    s.max = largest;
  }
  return s;
}

__device__ __forceinline__ Softmax over_warp(Softmax s) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    // Both partners add the same two in the same order, so that all lanes end with the same bits.
    const Softmax other{__shfl_xor_sync(~0U, s.max, step), __shfl_xor_sync(~0U, s.sum, step)};
    const bool low = (threadIdx.x & static_cast<unsigned>(step)) == 0;
    Softmax first = low ? s : other;
    first.add(low ? other : s);
    s = first;
  }
  return s;
}

template <int kThreads>
__device__ __forceinline__ Softmax over_row(const Softmax& mine) {
  const Softmax of_warp = over_warp(mine);
  if constexpr (kThreads == kWarp) return of_warp;
  __shared__ Softmax warps[kThreads / kWarp];
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  Softmax all = warps[0];
#pragma unroll
  for (int i = 1; i < kThreads / kWarp; ++i) all.add(warps[i]);
  return all;
}

template <class T>
struct RowsProblem {
  const float* logits;  // [rows, pitch]
  T* dlogits;           // the same; null: no gradients. In f32 it is `logits`.
  int64_t pitch;
  int rows, n;
  const int32_t* labels;  // of these rows
  const float* loss_weight;
  float* nll;
  const StepState* state;
};

/// Logits here as they were before the gradient overwrote them (in f32 they share memory): element v is read and written by one
/// thread alone.
template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads < 256 ? 256 : kThreads) rows_kernel(const RowsProblem<T> p) {
  constexpr int kRowsPerBlock = kThreads < 256 ? 256 / kThreads : 1;
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int r = static_cast<int>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / kThreads;
  if (r >= p.rows) return;  // whole warps
  const int label = p.labels[r];
  const float* row = p.logits + r * p.pitch;
  T* gradient = p.dlogits == nullptr ? nullptr : p.dlogits + r * p.pitch;
  if (label < 0 || label >= p.n) {
    const float value = label < 0 ? 0.0F : NAN;
    if (thread == 0) p.nll[r] = value;
    for (int v = thread; gradient != nullptr && v < p.n; v += kThreads) put(gradient[v], value);
    return;
  }
  const float at_label = row[label];
  const Softmax s = over_row<kThreads>(softmax_of_thread<kThreads>(row, p.n, thread));
  if (thread == 0) p.nll[r] = logf(s.sum) + (s.max - at_label);
  if (gradient == nullptr) return;
  __syncwarp();
  const float factor = p.state->loss_scale * p.loss_weight[r];
  const float share = factor / s.sum;
#pragma unroll 4
  for (int v = thread; v < p.n; v += kThreads) {
    const float e = expf(row[v] - s.max);
    put(gradient[v], v == label ? factor * (e / s.sum - 1.0F) : e * share);
  }
}

/// loss += sum of loss_weight nll, by one block.
constexpr int kLossThreads = 1024;
__global__ void __launch_bounds__(kLossThreads)
    loss_kernel(const float* nll, const float* weight, const int32_t* labels, int64_t tokens, double* loss) {
  __shared__ double sums[kLossThreads];
  double sum = 0;
#pragma unroll 4
  for (int64_t t = threadIdx.x; t < tokens; t += kLossThreads)
    if (labels[t] >= 0) sum += static_cast<double>(weight[t]) * static_cast<double>(nll[t]);
  sums[threadIdx.x] = sum;
  for (int half = kLossThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *loss += sums[0];
}

struct Chunk {
  const ops::LinearCrossEntropy& args;
  int64_t begin, rows;

  [[nodiscard]] Tensor x() const { return args.x.rows(begin, rows); }
};

template <class T>
void run_rows(Context& ctx, const Chunk& c) {
  const auto& a = c.args;
  const RowsProblem<T> p{.logits = a.logits.data<float>(),
                         .dlogits = a.dx.defined() ? static_cast<T*>(a.dlogits.raw()) : nullptr,
                         .pitch = a.logits.dim(1),
                         .rows = narrow<int>(c.rows),
                         .n = narrow<int>(a.w.dim(0)),
                         .labels = a.labels.data<int32_t>() + c.begin,
                         .loss_weight = a.loss_weight.data<float>() + c.begin,
                         .nll = a.nll.data<float>() + c.begin,
                         .state = a.state};
  const auto rows = static_cast<unsigned>(c.rows);
  constexpr int kBlock = 512;
  if (p.n <= 1024)
    rows_kernel<T, kWarp><<<(rows + 7) / 8, 256, 0, stream(ctx)>>>(p);
  else
    rows_kernel<T, kBlock><<<rows, kBlock, 0, stream(ctx)>>>(p);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

void run_logits(Context& ctx, const Chunk& c) {
  const auto& a = c.args;
  dense_product(ctx, {.in = a.x.dtype(),
                      .a = {.data = c.x().raw(), .pitch = a.x.dim(1)},
                      .b = {.data = a.w.raw(), .pitch = a.w.dim(1)},
                      .out = a.logits.raw(),
                      .out_dtype = DType::kF32,
                      .out_pitch = a.logits.dim(1),
                      .m = c.rows,
                      .n = a.w.dim(0),
                      .k = a.w.dim(1),
                      .workspace = a.workspace.raw()});
}

void run_gradients(Context& ctx, const Chunk& c) {
  const auto& a = c.args;
  const DType dtype = a.x.dtype();
  dense_product(ctx, {.in = dtype,
                      .a = {.data = a.dlogits.raw(), .pitch = a.dlogits.dim(1)},
                      .b = {.data = a.w.raw(), .pitch = a.w.dim(1), .along = false},
                      .out = a.dx.rows(c.begin, c.rows).raw(),
                      .out_dtype = dtype,
                      .out_pitch = a.dx.dim(1),
                      .m = c.rows,
                      .n = a.w.dim(1),
                      .k = a.w.dim(0),
                      .workspace = a.workspace.raw()});
  dense_product(ctx, {.in = dtype,
                      .a = {.data = a.dlogits.raw(), .pitch = a.dlogits.dim(1), .along = false},
                      .b = {.data = c.x().raw(), .pitch = a.x.dim(1), .along = false},
                      .out = a.dw.grad.raw(),
                      .out_dtype = DType::kF32,
                      .out_pitch = a.w.dim(1),
                      .m = a.w.dim(0),
                      .n = a.w.dim(1),
                      .k = c.rows,
                      .accumulate = a.dw.accumulate || c.begin > 0,
                      .workspace = a.workspace.raw()});
}

void run_chunk(Context& ctx, const Chunk& c) {
  if (c.rows > 0) {
    run_logits(ctx, c);
    c.args.x.dtype() == DType::kF32 ? run_rows<float>(ctx, c) : run_rows<__nv_bfloat16>(ctx, c);
  }
  if (c.args.dx.defined()) run_gradients(ctx, c);
}

}  // namespace

void linear_cross_entropy(Context& ctx, const ops::LinearCrossEntropy& args) {
  const DeviceGuard guard(ctx);
  const int64_t tokens = args.x.dim(0);
  const int64_t step = std::max<int64_t>(1, args.logits.dim(0));
  for (int64_t begin = 0; begin == 0 || begin < tokens; begin += step)
    run_chunk(ctx, {args, begin, std::min(step, tokens - begin)});
  loss_kernel<<<1, kLossThreads, 0, stream(ctx)>>>(args.nll.data<float>(), args.loss_weight.data<float>(),
                                                   args.labels.data<int32_t>(), tokens, args.loss.data<double>());
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace cistron::cuda
