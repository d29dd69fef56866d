// A group of threads walks down every so-manieth row and keeps a part of dw; then the groups' parts are added up. How many groups
// there are depends on the shape alone, so dw's bits do too. Rows that the threads of a group hold in four chunks each come
// through a ring in shared memory (rms_norm_backward_rows.cuh); others are read where they lie, and dw is kept in shared memory.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/lines.cuh"
#include "cistron/cuda/norm/rms_norm_backward_rows.cuh"
#include "cistron/ops/rms_norm.h"

namespace cistron::cuda {
namespace {

using device::Chunk, device::Floats, device::kLineChunks;

template <class T, int kWidth>
struct InChunk {
  Chunk<T, kWidth> dy, x, before;  // what dx held, if that is added to

  InChunk() = default;
  __device__ InChunk(const BackwardRows<T>& p, int64_t at)
      : dy(device::load_chunk<kWidth>(p.dy, at)), x(device::load_chunk<kWidth>(p.x, at)), before{} {
    if (p.accumulate_dx) before = device::load_chunk<kWidth>(static_cast<const T*>(p.dx), at);
  }
  [[nodiscard]] __device__ float dot(const BackwardRows<T>& p, int chunk) const {
    const auto w = device::load_chunk<kWidth>(p.w, chunk);
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum += device::as_float(dy.at[e]) * w.at[e] * device::as_float(x.at[e]);
    return sum;
  }
  /// dx = rstd (dy w - x scale), and adds to dw.
  __device__ void write(const BackwardRows<T>& p, int64_t row, int chunk, float rstd, float scale, float* dw) {
    device::keep_packed(dy);
    device::keep_packed(x);
    const auto w = device::load_chunk<kWidth>(p.w, chunk);
    auto sums = device::load_chunk<kWidth>(static_cast<const float*>(dw), chunk);
    Floats<kWidth> dx;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const float d = device::as_float(dy.at[e]), v = device::as_float(x.at[e]);
      dx.at[e] = rstd * (d * w.at[e] - v * scale);
      if (p.accumulate_dx) dx.at[e] += device::as_float(before.at[e]);
      sums.at[e] += d * v * rstd;
    }
    device::store_chunk<kWidth>(dw, chunk, sums);
    device::store_chunk<kWidth>(p.dx, row * p.row_chunks + chunk, dx);
  }
};

template <class T, int kWidth>
__global__ void __launch_bounds__(device::kLineThreads, 2) backward_kernel(BackwardRows<T> p) {
  __shared__ float shared[device::kLineWarps];
  extern __shared__ float4 sums_of_block[];  // [groups of a block, H]; a thread has its own columns
  const int group = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y), groups = static_cast<int>(gridDim.x * blockDim.y);
  const int step = static_cast<int>(blockDim.x), lane = static_cast<int>(threadIdx.x), n = p.row_chunks;
  float* dw = reinterpret_cast<float*>(sums_of_block) + static_cast<int>(threadIdx.y) * n * kWidth;
  for (int c = lane; c < n; c += step) device::zero_chunk<kWidth>(dw, c);
  // All groups take as many turns, since they meet at barriers; a row that isn't there is empty.
  for (int64_t row = group; row - group < p.rows; row += groups) {
    const int end = row < p.rows ? n : 0;
    const float rstd = row < p.rows ? p.rstd[row] : 0.0F;
    InChunk<T, kWidth> kept[kLineChunks];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kLineChunks; ++i)
      if (lane + i * step < end) kept[i] = InChunk<T, kWidth>(p, row * n + lane + i * step);
#pragma unroll
    for (int i = 0; i < kLineChunks; ++i)
      if (lane + i * step < end) sum += kept[i].dot(p, lane + i * step);
    for (int c = lane + kLineChunks * step; c < end; c += step) sum += InChunk<T, kWidth>(p, row * n + c).dot(p, c);
    const float scale = rstd * rstd * (device::line_sum(sum, shared) / static_cast<float>(n * kWidth));
#pragma unroll
    for (int i = 0; i < kLineChunks; ++i)
      if (lane + i * step < end) kept[i].write(p, row, lane + i * step, rstd, scale, dw);
    for (int c = lane + kLineChunks * step; c < end; c += step)
      InChunk<T, kWidth>(p, row * n + c).write(p, row, c, rstd, scale, dw);
  }
  float* partial = p.partial + int64_t{group} * n * kWidth;
  for (int c = lane; c < n; c += step)
    device::store_chunk<kWidth>(partial, c, device::load_chunk<kWidth>(static_cast<const float*>(dw), c));
}

template <class T, int kWidth>
void launch(const Context& ctx, const BackwardRows<T>& rows, const dim3& block, uint32_t blocks) {
  const int64_t hidden = int64_t{rows.row_chunks} * kWidth;
  const int bytes = narrow<int>(block.y * hidden * int64_t{sizeof(float)}), room = shared_memory_per_block(ctx) - 1024;
  CISTRON_CHECK(bytes <= room, "[rms_norm_backward] rows of {}; on this card at most {}", hidden, room / sizeof(float));
  const auto kernel = backward_kernel<T, kWidth>;
  CISTRON_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<blocks, block, static_cast<size_t>(bytes), stream(ctx)>>>(rows);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

template <class T, int kWidth, bool kAdds>
void launch_ring(const Context& ctx, const BackwardRows<T>& rows, const dim3& block, uint32_t blocks) {
  const auto kernel = ring_kernel<T, kWidth, kAdds>;
  CISTRON_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kRingBytes));
  kernel<<<blocks, block, kRingBytes, stream(ctx)>>>(rows);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void rms_norm_backward(Context& ctx, const ops::RmsNormBackward& args) {
  const DeviceGuard guard(ctx);
  const int64_t hidden = args.x.dim(1);
  if (hidden == 0) return;
  int64_t lines = args.partial.dim(0);
  device::with_chunks(hidden, {&args.x, &args.dy, &args.dx, &args.w}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    const dim3 block = device::line_block(hidden / kWidth);
    const auto blocks = narrow<uint32_t>(div_exact(lines, block.y));
    const BackwardRows<T> rows{.dy = device::pointer<const T>(args.dy),
                               .x = device::pointer<const T>(args.x),
                               .w = device::pointer<const float>(args.w),
                               .rstd = device::pointer<const float>(args.rstd),
                               .dx = device::pointer<T>(args.dx),
                               .partial = device::pointer<float>(args.partial),
                               .rows = narrow<int32_t>(args.x.dim(0)),
                               .row_chunks = narrow<int32_t>(hidden / kWidth),
                               .accumulate_dx = args.accumulate_dx};
    if constexpr (sizeof(T) * kWidth == device::kChunkBytes) {
      if (rows.row_chunks <= device::kLineChunks * static_cast<int64_t>(block.x)) {
        lines = blocks;
        return args.accumulate_dx ? launch_ring<T, kWidth, true>(ctx, rows, block, blocks)
                                  : launch_ring<T, kWidth, false>(ctx, rows, block, blocks);
      }
    }
    launch<T, kWidth>(ctx, rows, block, blocks);
  });
  device::column_sums(ctx, device::pointer<const float>(args.partial), lines, hidden, device::pointer<float>(args.dw.grad),
                      args.dw.accumulate);
}

}  // namespace cistron::cuda
