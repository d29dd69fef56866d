// A block has a tile of one expert's rows; a thread keeps its columns of the bias in registers.
#include "cistron/cuda/moe/grouped_bias.cuh"
#include "cistron/cuda/moe/grouped_bias.h"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {
namespace {

constexpr int kUnroll = 4;

template <class T, int kWidth>
__global__ void __launch_bounds__(device::kWarp* kBiasWarps)
    add_kernel(BiasTiles tiles, const float* bias, const float* weight, T* y, int row_chunks) {
  const BiasTile tile(tiles, static_cast<int32_t>(blockIdx.y));
  const BiasColumns<kWidth> columns(row_chunks);
  constexpr int kChunks = BiasColumns<kWidth>::kChunks;
  if (tile.begin >= tile.end) return;
  device::Floats<kWidth> b[kChunks] = {};
  columns.load(b, bias, tile.expert);
#pragma unroll 1
  for (int first = tile.begin + static_cast<int>(threadIdx.y); first < tile.end; first += kUnroll * kBiasWarps) {
    device::Chunk<T, kWidth> in[kUnroll][kChunks] = {};
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
      if (const int row = first + i * kBiasWarps; row < tile.end) columns.load(in[i], static_cast<const T*>(y), row);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int row = first + i * kBiasWarps;
      if (row >= tile.end) break;
      const float scale = weight == nullptr ? 1.0F : __ldg(weight + row);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        auto sum = device::floats(in[i][c]);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sum.at[e] += scale * b[c].at[e];
        if (columns.inside(c)) device::store_chunk<kWidth>(y, int64_t{row} * row_chunks + columns.chunk(c), sum);
      }
    }
  }
}

}  // namespace

void add_grouped_bias(Context& ctx, const ops::ExpertBias& bias, const ops::Groups& groups, const Tensor& y) {
  const DeviceGuard guard(ctx);
  const int64_t width = y.dim(1);
  const dim3 grid = bias_grid(groups, width);
  if (grid.x * grid.y == 0) return;
  device::with_chunks(width, {&y, &bias.values}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    add_kernel<T, kWidth><<<grid, dim3(device::kWarp, kBiasWarps), 0, stream(ctx)>>>(
        BiasTiles(groups), device::pointer<const float>(bias.values),
        bias.scaled ? device::pointer<const float>(groups.weight) : nullptr, device::pointer<T>(y), narrow<int>(width / kWidth));
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace cistron::cuda
