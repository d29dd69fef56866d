// Two passes, without atomics: sums over tiles of one expert's rows, then over an expert's tiles in their order. dy is read once,
// for the routing weights' gradient too, whose parts by tiles of columns are added up in a third.
#include "cistron/cuda/device/reduce.cuh"
#include "cistron/cuda/gemm/grouped_swiglu.h"
#include "cistron/cuda/moe/grouped_bias.cuh"
#include "cistron/cuda/moe/grouped_bias.h"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {
namespace {

using device::Chunk, device::Floats, device::kWarp;

constexpr int kUnroll = 4;
static_assert(kBiasWarpRows <= kWarp && kBiasWarpRows % kUnroll == 0);

template <class T>
struct Problem {
  BiasTiles tiles;
  const T* dy;
  const int32_t* source_row;  // null: dy is in expert order
  const float* bias;          // null: not scaled, and so without dweight
  const float* weight;
  float *partials, *row_partials;
  int32_t row_chunks, rows;
};

/// The warps' sums of the same columns, in their order.
template <int kWidth>
__device__ __forceinline__ void store_sums(const BiasColumns<kWidth>& columns, const Floats<kWidth> (&sums)[8 / kWidth],
                                           float* partials) {
  __shared__ float shared[kBiasWarps][ops::kBiasTileColumns];
#pragma unroll
  for (int c = 0; c < 8 / kWidth; ++c)
    device::store_chunk<kWidth>(&shared[threadIdx.y][0], c * kWarp + static_cast<int>(threadIdx.x), sums[c]);
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.y * kWarp + threadIdx.x);
  const int64_t width = int64_t{columns.row_chunks} * kWidth, column = int64_t{blockIdx.x} * ops::kBiasTileColumns + mine;
  if (column >= width) return;
  float sum = shared[0][mine];
#pragma unroll
  for (int w = 1; w < kBiasWarps; ++w) sum += shared[w][mine];
  partials[blockIdx.y * width + column] = sum;
}

template <class T, int kWidth, bool kScaled>
__global__ void __launch_bounds__(kWarp* kBiasWarps) tile_kernel(const __grid_constant__ Problem<T> p) {
  const BiasTile tile(p.tiles, static_cast<int32_t>(blockIdx.y));
  const BiasColumns<kWidth> columns(p.row_chunks);
  constexpr int kChunks = BiasColumns<kWidth>::kChunks;
  if (tile.begin >= tile.end) return;
  Floats<kWidth> bias[kChunks] = {}, sums[kChunks] = {};
  if constexpr (kScaled) columns.load(bias, p.bias, tile.expert);
  const int first = tile.begin + static_cast<int>(threadIdx.y), lane = static_cast<int>(threadIdx.x);
  // Lane i knows of the warp's row i where it lies, and its weight.
  const int known = first + lane * kBiasWarps;
  const bool exists = lane < kBiasWarpRows && known < tile.end;
  const int place = !exists ? -1 : p.source_row == nullptr ? known : __ldg(p.source_row + known);
  const float weight = kScaled && exists ? __ldg(p.weight + known) : 1.0F;
#pragma unroll 1
  for (int i = 0; i < kBiasWarpRows; i += kUnroll) {
    Chunk<T, kWidth> dy[kUnroll][kChunks] = {};
#pragma unroll
    for (int j = 0; j < kUnroll; ++j)
      if (const int row = __shfl_sync(~0U, place, i + j); row >= 0) columns.load(dy[j], p.dy, row);
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      const float scale = __shfl_sync(~0U, weight, i + j);
      float dot = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          const float d = device::as_float(dy[j][c].at[e]);
          sums[c].at[e] += kScaled ? scale * d : d;
          if constexpr (kScaled) dot += d * bias[c].at[e];
        }
      if constexpr (kScaled) {
        dot = device::warp_sum(dot);
        const int row = first + (i + j) * kBiasWarps;
        if (lane == 0 && row < tile.end) p.row_partials[int64_t{blockIdx.x} * p.rows + row] = dot;
      }
    }
  }
  store_sums<kWidth>(columns, sums, p.partials);
}

/// A thread a column; a row of blocks an expert.
__global__ void sum_tiles_kernel(BiasTiles tiles, const float* partials, int64_t width, float* out, bool accumulate) {
  const int64_t column = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const auto e = static_cast<int32_t>(blockIdx.y);
  const int32_t first = tiles.first_tile(e), count = tiles.tiles_of(e);
  if (column >= width || (count == 0 && accumulate)) return;
  float sum = 0;
#pragma unroll 8
  for (int32_t i = 0; i < count; ++i) sum += partials[(first + i) * width + column];
  float& to = out[e * width + column];
  to = accumulate ? to + sum : sum;
}

template <class T, int kWidth>
void sum_rows(const Context& ctx, const ops::GroupedBiasBackward& args, const dim3& grid) {
  const bool scaled = args.bias.scaled;
  const Problem<T> p{.tiles = BiasTiles(args.groups),
                     .dy = device::pointer<const T>(args.dy),
                     .source_row = args.by_token ? device::pointer<const int32_t>(args.groups.source_row) : nullptr,
                     .bias = scaled ? device::pointer<const float>(args.bias.values) : nullptr,
                     .weight = device::pointer<const float>(args.groups.weight),
                     .partials = device::pointer<float>(args.partials),
                     .row_partials = scaled ? device::pointer<float>(args.row_partials) : nullptr,
                     .row_chunks = narrow<int32_t>(args.dy.dim(1) / kWidth),
                     .rows = narrow<int32_t>(args.groups.max_rows())};
  (scaled ? tile_kernel<T, kWidth, true> : tile_kernel<T, kWidth, false>)<<<grid, dim3(kWarp, kBiasWarps), 0, stream(ctx)>>>(p);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void sum_bias_tiles(const Context& ctx, const Tensor& partials, const ops::Groups& groups, const GradSink& dbias) {
  constexpr int kThreads = 256;
  const int64_t width = partials.dim(1);
  const dim3 grid(narrow<uint32_t>(ceil_div(width, kThreads)), narrow<uint32_t>(groups.num_experts()));
  sum_tiles_kernel<<<grid, kThreads, 0, stream(ctx)>>>(BiasTiles(groups), device::pointer<const float>(partials), width,
                                                       device::pointer<float>(dbias.grad), dbias.accumulate);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

void grouped_bias_backward(Context& ctx, const ops::GroupedBiasBackward& args) {
  const DeviceGuard guard(ctx);
  const int64_t width = args.dy.dim(1);
  const dim3 grid = bias_grid(args.groups, width);
  if (grid.x * grid.y == 0) return;
  const Tensor& bias = args.bias.scaled ? args.bias.values : args.dbias.grad;
  device::with_chunks(width, {&args.dy, &bias},
                      [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) { sum_rows<T, kWidth>(ctx, args, grid); });
  sum_bias_tiles(ctx, args.partials, args.groups, args.dbias);
  if (args.bias.scaled) sum_partials(ctx, args.row_partials, args.groups, args.dweight, args.accumulate_dweight);
}

}  // namespace cistron::cuda
