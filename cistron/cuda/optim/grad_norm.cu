// Squares in f64: each block sums a piece of one gradient, thread by thread, then all pieces' sums are added up by one block.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/reduce.cuh"
#include "cistron/cuda/optim/tensor_list.cuh"
#include "cistron/ops/optimizer.h"

namespace cistron::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kFinalThreads = 1024;
constexpr int kWidth = 4;
constexpr int kUnroll = 4;

struct Gradient {
  const float* data;
  int64_t elements;
  int32_t first_block;
  bool wide;  // 16-byte loads are possible
};
using Gradients = TensorList<Gradient, 1024>;

__device__ __forceinline__ double square(float x) { return static_cast<double>(x) * static_cast<double>(x); }

__global__ void __launch_bounds__(kThreads) squares_kernel(const __grid_constant__ Gradients gradients, double* partial) {
  const Gradient& g = gradients.of_block(static_cast<int>(blockIdx.x));
  const int64_t begin = (static_cast<int>(blockIdx.x) - g.first_block) * ops::kNormPiece;
  const int64_t count = min(g.elements - begin, ops::kNormPiece);
  const float* data = g.data + begin;
  const int64_t chunks = g.wide ? count / kWidth : 0;
  double sum = 0;
  for (int64_t first = threadIdx.x; first < chunks; first += kThreads * kUnroll) {
    device::Floats<kWidth> in[kUnroll] = {};
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
      if (first + i * kThreads < chunks) in[i] = device::load_chunk<kWidth>(data, first + i * kThreads);
#pragma unroll
    for (const auto& chunk : in)
#pragma unroll
      for (const float x : chunk.at) sum += square(x);
  }
  for (int64_t i = chunks * kWidth + threadIdx.x; i < count; i += kThreads) sum += square(data[i]);
  __shared__ double shared[kThreads / device::kWarp];
  sum = device::line_sum(sum, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// The sum to `out`, or the norm to `state`.
__global__ void __launch_bounds__(kFinalThreads)
    norm_kernel(const double* partial, int64_t pieces, double* out, StepState* state) {
  double sum = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < pieces; i += kFinalThreads) sum += partial[i];
  __shared__ double shared[kFinalThreads / device::kWarp];
  sum = device::line_sum(sum, shared);
  if (threadIdx.x > 0) return;
  if (out != nullptr) *out = sum;
  if (state == nullptr) return;
  const auto norm = static_cast<float>(sqrt(sum));
  const bool finite = isfinite(norm);
  state->grad_norm = norm;
  state->finite = finite ? 1 : 0;
  const float clip = state->clip_norm;
  state->clip_factor = clip > 0 && finite ? fminf(1.0F, clip / (norm + 1e-6F)) : 1.0F;
}

void squares_of_pieces(const Context& ctx, std::span<const Tensor> grads, double* partial) {
  std::vector<Gradient> gradients;
  for (const Tensor& grad : grads)
    gradients.push_back({.data = device::pointer<const float>(grad),
                         .elements = grad.numel(),
                         .first_block = 0,
                         .wide = device::fits_chunks(grad, 0, kWidth)});
  for_tensor_lists<Gradients>(std::span<const Gradient>(gradients), ops::kNormPiece, [&](const Gradients& list, uint32_t blocks) {
    squares_kernel<<<blocks, kThreads, 0, stream(ctx)>>>(list, partial);
    CISTRON_CUDA_CHECK(cudaGetLastError());
    partial += blocks;
  });
}

void finish(const Context& ctx, const Tensor& partial, double* out, StepState* state) {
  norm_kernel<<<1, kFinalThreads, 0, stream(ctx)>>>(device::pointer<const double>(partial), partial.numel(), out, state);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void grad_norm(Context& ctx, const ops::GradNorm& args) {
  const DeviceGuard guard(ctx);
  squares_of_pieces(ctx, args.grads, device::pointer<double>(args.partial));
  finish(ctx, args.partial, nullptr, args.state);
}

void sum_of_squares(Context& ctx, const ops::SumOfSquares& args) {
  const DeviceGuard guard(ctx);
  squares_of_pieces(ctx, args.grads, device::pointer<double>(args.partial));
  finish(ctx, args.partial, device::pointer<double>(args.out), nullptr);
}

void norm_of_squares(Context& ctx, const ops::NormOfSquares& args) {
  const DeviceGuard guard(ctx);
  finish(ctx, args.squares, nullptr, args.state);
}

}  // namespace cistron::cuda
