// A group of threads has a row and keeps it in registers between the two passes. The row is x, or the sum of two, which is
// written as well.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/lines.cuh"
#include "cistron/ops/rms_norm.h"

namespace cistron::cuda {
namespace {

using device::Chunk, device::Floats, device::kLineChunks;

template <int kWidth>
__device__ __forceinline__ float squares(const Floats<kWidth>& x) {
  float sum = 0;
#pragma unroll
  for (const float v : x.at) sum += v * v;
  return sum;
}

template <class T, int kWidth>
__device__ __forceinline__ void write_normed(T* out, int chunk, Floats<kWidth> x, float rstd, const float* w) {
  const auto weight = device::load_chunk<kWidth>(w, chunk);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) x.at[e] *= rstd * weight.at[e];
  device::store_chunk<kWidth>(out, chunk, x);
}

template <class T>
struct ForwardRows {
  const T* x;
  const T* added;  // null: none
  T* sum;          // of x and `added`
  const float* w;
  T* out;  // null: not wanted
  float* rstd;
  float eps;
  int32_t rows = 0;
  int32_t row_chunks = 0;
};

/// A chunk of the row, as rounded to T.
template <class T, int kWidth, bool kAdds>
__device__ __forceinline__ Chunk<T, kWidth> row_chunk(const ForwardRows<T>& p, int64_t at) {
  const auto x = device::load_chunk<kWidth>(p.x, at);
  if constexpr (!kAdds) return x;
  auto sum = device::floats(x);
  const auto added = device::floats(device::load_chunk<kWidth>(p.added, at));
#pragma unroll
  for (int e = 0; e < kWidth; ++e) sum.at[e] += added.at[e];
  return device::rounded<T, kWidth>(sum);
}

template <class T, int kWidth, bool kAdds>
__global__ void __launch_bounds__(device::kLineThreads) forward_kernel(ForwardRows<T> p) {
  __shared__ float shared[device::kLineWarps];
  const int row = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  const int n = row < p.rows ? p.row_chunks : 0;  // a row that isn't there is empty
  const int step = static_cast<int>(blockDim.x), lane = static_cast<int>(threadIdx.x);
  const int64_t begin = int64_t{row} * p.row_chunks;
  T* out = p.out + begin * kWidth;

  Chunk<T, kWidth> kept[kLineChunks];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kLineChunks; ++i)
    if (lane + i * step < n) kept[i] = row_chunk<T, kWidth, kAdds>(p, begin + lane + i * step);
#pragma unroll
  for (int i = 0; i < kLineChunks; ++i) {
    if (lane + i * step >= n) continue;
    sum += squares(device::floats(kept[i]));
    if (kAdds) reinterpret_cast<Chunk<T, kWidth>*>(p.sum)[begin + lane + i * step] = kept[i];
  }
  for (int c = lane + kLineChunks * step; c < n; c += step) {
    const auto chunk = row_chunk<T, kWidth, kAdds>(p, begin + c);
    sum += squares(device::floats(chunk));
    if (kAdds) reinterpret_cast<Chunk<T, kWidth>*>(p.sum)[begin + c] = chunk;
  }
  sum = device::line_sum(sum, shared);

  const float rstd = 1.0F / sqrtf(sum / static_cast<float>(p.row_chunks * kWidth) + p.eps);
  if (row < p.rows && lane == 0) p.rstd[row] = rstd;
  if (p.out == nullptr) return;
#pragma unroll
  for (int i = 0; i < kLineChunks; ++i)
    if (lane + i * step < n) write_normed(out, lane + i * step, device::floats(kept[i]), rstd, p.w);
  const T* again = kAdds ? p.sum : p.x;  // this thread wrote the sum
  for (int c = lane + kLineChunks * step; c < n; c += step)
    write_normed(out, c, device::floats(device::load_chunk<kWidth>(again, begin + c)), rstd, p.w);
}

template <class T, int kWidth, bool kAdds>
void launch(const Context& ctx, ForwardRows<T> p, int64_t rows, int64_t hidden) {
  const dim3 block = device::line_block(hidden / kWidth);
  const uint32_t blocks = device::blocks_for(rows, block.y);
  if (blocks == 0) return;
  p.rows = narrow<int32_t>(rows);
  p.row_chunks = narrow<int32_t>(hidden / kWidth);
  forward_kernel<T, kWidth, kAdds><<<blocks, block, 0, stream(ctx)>>>(p);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void rms_norm_forward(Context& ctx, const ops::RmsNormForward& args) {
  const DeviceGuard guard(ctx);
  const int64_t hidden = args.x.dim(1);
  device::with_chunks(hidden, {&args.x, &args.out, &args.w}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    launch<T, kWidth, false>(ctx,
                             {.x = device::pointer<const T>(args.x),
                              .w = device::pointer<const float>(args.w),
                              .out = device::pointer<T>(args.out),
                              .rstd = device::pointer<float>(args.rstd),
                              .eps = args.eps},
                             args.x.dim(0), hidden);
  });
}

void add_rms_norm_forward(Context& ctx, const ops::AddRmsNormForward& args) {
  const DeviceGuard guard(ctx);
  const int64_t hidden = args.a.dim(1);
  device::with_chunks(hidden, {&args.a, &args.b, &args.sum, &args.out, &args.w},
                      [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
                        launch<T, kWidth, true>(ctx,
                                                {.x = device::pointer<const T>(args.a),
                                                 .added = device::pointer<const T>(args.b),
                                                 .sum = device::pointer<T>(args.sum),
                                                 .w = device::pointer<const float>(args.w),
                                                 .out = device::pointer<T>(args.out),
                                                 .rstd = device::pointer<float>(args.rstd),
                                                 .eps = args.eps},
                                                args.a.dim(0), hidden);
                      });
}

}  // namespace cistron::cuda
