#pragma once
// out[r, :] = x[index[r], :], or `filler` in every word where index[r] is outside [0, limit); rows from *end on are left alone.
// Rows are bytes here, so one kernel serves every dtype.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda::device {

struct RowCopy {
  const void* x;
  const int32_t* index;
  const int32_t* end;  // null: all rows
  void* out;
  uint32_t chunks;  // of all rows
  Divisor row;      // chunks of a row
  int32_t row_chunks;
  int32_t limit;
  uint16_t filler;
};

constexpr int kCopyThreads = 256;
constexpr int kCopyUnroll = 4;

template <int kWidth>  // of 2 bytes
__global__ void __launch_bounds__(kCopyThreads) copy_rows_kernel(RowCopy copy) {
  using Bytes = Chunk<uint16_t, kWidth>;
  const uint32_t first = blockIdx.x * (kCopyThreads * kCopyUnroll) + threadIdx.x;
  const int32_t end = copy.end == nullptr ? INT32_MAX : *copy.end;
  Bytes chunk[kCopyUnroll];
  bool wanted[kCopyUnroll];
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i) {
    const uint32_t at = first + i * kCopyThreads;
    const uint32_t row = copy.row.quotient(at);
    wanted[i] = at < copy.chunks && static_cast<int32_t>(row) < end;
    if (!wanted[i]) continue;
    const int32_t from = copy.index[row];
    if (from >= 0 && from < copy.limit) {
      chunk[i] = static_cast<const Bytes*>(copy.x)[int64_t{from} * copy.row_chunks + copy.row.remainder(at, row)];
    } else {
#pragma unroll
      for (uint16_t& word : chunk[i].at) word = copy.filler;
    }
  }
#pragma unroll
  for (int i = 0; i < kCopyUnroll; ++i)
    if (wanted[i]) static_cast<Bytes*>(copy.out)[first + i * kCopyThreads] = chunk[i];
}

/// x [limit, W], index [R], out [R, W]; x's dtype has at least 2 bytes.
inline void copy_rows(const Context& ctx, const Tensor& x, const Tensor& index, const int32_t* end, const Tensor& out,
                      uint16_t filler) {
  const int64_t words = x.dim(1) * size_of(x.dtype()) / 2;
  const int wide = kChunkBytes / static_cast<int>(size_of(x.dtype()));
  const bool fits = fits_chunks(x, x.dim(1), wide) && fits_chunks(out, x.dim(1), wide);
  const int64_t row_chunks = fits ? words / 8 : words;
  const RowCopy copy{.x = x.raw(),
                     .index = pointer<const int32_t>(index),
                     .end = end,
                     .out = out.raw(),
                     .chunks = narrow<uint32_t>(out.dim(0) * row_chunks),
                     .row = Divisor(row_chunks),
                     .row_chunks = narrow<int32_t>(row_chunks),
                     .limit = narrow<int32_t>(x.dim(0)),
                     .filler = filler};
  const uint32_t blocks = blocks_for(out.dim(0) * row_chunks, kCopyThreads * kCopyUnroll);
  if (blocks == 0) return;
  (fits ? copy_rows_kernel<8> : copy_rows_kernel<1>)<<<blocks, kCopyThreads, 0, stream(ctx)>>>(copy);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace cistron::cuda::device
