// out[t, :] = the sum over t's choices, in their order, of x[token_rows[t, j], :]. A thread has a few chunks of `out`; it asks
// for several rows' chunks before it adds the first.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/gather.h"

namespace cistron::cuda {
namespace {

constexpr int kThreads = 256;

struct CombineProblem {
  const void* x;
  const int32_t* token_rows;
  void* out;
  uint32_t chunks;      // of out
  device::Divisor row;  // chunks of a row
  int32_t row_chunks;
  int32_t top_k;
  bool accumulate;
};

template <class T, int kWidth, int kChunks, int kRows>
__global__ void __launch_bounds__(kThreads) combine_kernel(CombineProblem p) {
  const auto* x = static_cast<const T*>(p.x);
  auto* out = static_cast<T*>(p.out);
  const uint32_t first = blockIdx.x * (kThreads * kChunks) + threadIdx.x;
  device::Floats<kWidth> sum[kChunks] = {};
  for (int j = 0; j < p.top_k; j += kRows) {
    device::Chunk<T, kWidth> part[kChunks][kRows] = {};  // zeros for what isn't there
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint32_t at = first + i * kThreads;
      if (at >= p.chunks) continue;
      const uint32_t token = p.row.quotient(at);
      const uint32_t column = p.row.remainder(at, token);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int32_t row = j + r < p.top_k ? p.token_rows[int64_t{token} * p.top_k + j + r] : -1;
        if (row >= 0) part[i][r] = device::load_chunk<kWidth>(x, int64_t{row} * p.row_chunks + column);
      }
    }
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sum[i].at[e] += device::as_float(part[i][r].at[e]);
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const uint32_t at = first + i * kThreads;
    if (at >= p.chunks) continue;
    if (p.accumulate) {
      const auto before = device::floats(device::load_chunk<kWidth>(static_cast<const T*>(out), at));
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum[i].at[e] += before.at[e];
    }
    device::store_chunk<kWidth>(out, at, sum[i]);
  }
}

}  // namespace

void combine(Context& ctx, const ops::Combine& args) {
  const DeviceGuard guard(ctx);
  const int64_t hidden = args.x.dim(1);
  device::with_chunks(hidden, {&args.x, &args.out}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    const int64_t row_chunks = hidden / kWidth;
    const int64_t chunks = args.out.numel() / kWidth;
    const int top_k = narrow<int>(args.groups.top_k());
    const CombineProblem p{.x = args.x.raw(),
                           .token_rows = device::pointer<const int32_t>(args.groups.token_rows),
                           .out = args.out.raw(),
                           .chunks = narrow<uint32_t>(chunks),
                           .row = device::Divisor(row_chunks),
                           .row_chunks = narrow<int32_t>(row_chunks),
                           .top_k = top_k,
                           .accumulate = args.accumulate};
    if (chunks == 0) return;
    if (top_k <= 2)
      combine_kernel<T, kWidth, 2, 2><<<device::blocks_for(chunks, 2 * kThreads), kThreads, 0, stream(ctx)>>>(p);
    else
      combine_kernel<T, kWidth, 1, 8><<<device::blocks_for(chunks, kThreads), kThreads, 0, stream(ctx)>>>(p);
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace cistron::cuda
