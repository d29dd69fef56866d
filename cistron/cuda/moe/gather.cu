// Token order to expert order (ops/gather.h). By tokens, not by rows: each of a token's chunks is read once and written to its k
// rows, whichever experts they are of; blocks behind those of the tokens write the pad rows' zeros. No arithmetic, so any order.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/elementwise/map.cuh"
#include "cistron/ops/gather.h"

namespace cistron::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;     // chunks of a thread, on their way together
constexpr int kPadBlocks = 4;  // of an expert

struct Gathering {
  const void* x;
  const int32_t *token_rows, *starts, *counts;
  void* out;
  uint32_t chunks;  // of all tokens
  device::Divisor row;
  int32_t row_chunks, top_k;
  uint32_t token_blocks;
};

template <class Bytes>
__device__ void write_pad_rows(const Gathering& g, uint32_t block) {
  const uint32_t e = block / kPadBlocks;
  const int64_t begin = int64_t{g.starts[e] + g.counts[e]} * g.row_chunks, end = int64_t{g.starts[e + 1]} * g.row_chunks;
  for (int64_t i = begin + block % kPadBlocks * kThreads + threadIdx.x; i < end; i += kPadBlocks * kThreads)
    static_cast<Bytes*>(g.out)[i] = Bytes{};
}

template <int kWidth>  // of 2 bytes, so that one kernel serves every dtype
__global__ void __launch_bounds__(kThreads) gather_kernel(Gathering g) {
  using Bytes = device::Chunk<uint16_t, kWidth>;
  if (blockIdx.x >= g.token_blocks) return write_pad_rows<Bytes>(g, blockIdx.x - g.token_blocks);
  const uint32_t first = blockIdx.x * (kThreads * kUnroll) + threadIdx.x;
  Bytes chunk[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i)
    if (const uint32_t at = first + i * kThreads; at < g.chunks) chunk[i] = static_cast<const Bytes*>(g.x)[at];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const uint32_t at = first + i * kThreads;
    if (at >= g.chunks) return;
    const uint32_t token = g.row.quotient(at);
    const int32_t* rows = g.token_rows + int64_t{token} * g.top_k;
    for (int j = 0; j < g.top_k; ++j)
      if (const int32_t row = rows[j]; row >= 0)
        static_cast<Bytes*>(g.out)[int64_t{row} * g.row_chunks + g.row.remainder(at, token)] = chunk[i];
  }
}

struct ChoicesMap {
  const float* rows;
  const int32_t* token_rows;
  float* out;
  __device__ float load(int64_t i) const { return token_rows[i] < 0 ? 0.0F : rows[token_rows[i]]; }
  __device__ void store(int64_t i, float value) const { out[i] = value; }
};

}  // namespace

void gather(Context& ctx, const ops::Gather& args) {
  const DeviceGuard guard(ctx);
  const Tensor& x = args.x;
  CISTRON_CHECK(x.dim(1) * size_of(x.dtype()) % 2 == 0, "[gather] rows of {} bytes: an even number wanted on a card",
                x.dim(1) * size_of(x.dtype()));
  const int64_t words = x.dim(1) * size_of(x.dtype()) / 2;
  const int wide = device::kChunkBytes / static_cast<int>(size_of(x.dtype()));
  const bool fits = device::fits_chunks(x, x.dim(1), wide) && device::fits_chunks(args.out, x.dim(1), wide);
  const int64_t row_chunks = fits ? words / 8 : words, chunks = x.dim(0) * row_chunks;
  const Gathering g{.x = x.raw(),
                    .token_rows = device::pointer<const int32_t>(args.groups.token_rows),
                    .starts = device::pointer<const int32_t>(args.groups.starts),
                    .counts = device::pointer<const int32_t>(args.groups.counts),
                    .out = args.out.raw(),
                    .chunks = narrow<uint32_t>(chunks),
                    .row = device::Divisor(row_chunks),
                    .row_chunks = narrow<int32_t>(row_chunks),
                    .top_k = narrow<int32_t>(args.groups.top_k()),
                    .token_blocks = device::blocks_for(chunks, kThreads * kUnroll)};
  const uint32_t blocks = g.token_blocks + kPadBlocks * narrow<uint32_t>(args.groups.num_experts());
  (fits ? gather_kernel<8> : gather_kernel<1>)<<<blocks, kThreads, 0, stream(ctx)>>>(g);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

void gather_choices(Context& ctx, const ops::GatherChoices& args) {
  const DeviceGuard guard(ctx);
  launch_map(ctx, args.out.numel(),
             ChoicesMap{device::pointer<const float>(args.rows), device::pointer<const int32_t>(args.groups.token_rows),
                        device::pointer<float>(args.out)});
}

}  // namespace cistron::cuda
