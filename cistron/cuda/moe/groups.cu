#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/counting_sort.cuh"
#include "cistron/ops/groups.h"

namespace cistron::cuda {
namespace {

using device::kSortThreads, device::SortedBins, device::SortShape;

struct ExpertOf {
  const int32_t* experts;
  uint32_t first_expert, num_experts;
  __device__ int operator()(int i) const {
    const uint32_t e = static_cast<uint32_t>(experts[i]) - first_expert;
    return e < num_experts ? static_cast<int>(e) : -1;
  }
};

struct GroupsOut {
  int32_t *starts, *counts, *source_row;
  float* weight;
  int32_t* token_rows;
  int32_t max_rows;
};

/// Nothing may be said to lie past the room there is.
__device__ void write_segments(const SortShape& shape, const SortedBins& bins, const GroupsOut& out) {
  for (int e = static_cast<int>(threadIdx.x); e <= shape.bins; e += kSortThreads) {
    const int start = min(bins.start[e], out.max_rows);
    out.starts[e] = start;
    if (e < shape.bins) out.counts[e] = min(bins.total[e], out.max_rows - start);
  }
}

/// Behind each expert's rows, and behind the last segment. The blocks share this out.
__device__ void write_pad_rows(const SortShape& shape, const SortedBins& bins, const GroupsOut& out) {
  for (int e = static_cast<int>(blockIdx.x); e <= shape.bins; e += static_cast<int>(gridDim.x)) {
    const int from = e < shape.bins ? bins.start[e] + bins.total[e] : bins.start[e];
    const int to = e < shape.bins ? min(bins.start[e + 1], out.max_rows) : out.max_rows;
    for (int r = from + static_cast<int>(threadIdx.x); r < to; r += kSortThreads) {
      out.source_row[r] = -1;
      out.weight[r] = 0.0F;
    }
  }
}

__global__ void __launch_bounds__(kSortThreads)
    groups_kernel(SortShape shape, ExpertOf key, const int32_t* tile_counts, const float* weights, int32_t top_k, GroupsOut out) {
  __shared__ SortedBins bins;
  device::place_bins(shape, tile_counts, bins);
  if (blockIdx.x == 0) write_segments(shape, bins, out);
  write_pad_rows(shape, bins, out);
  device::place_items(shape, key, bins, [&](int choice, int row) {
    const bool fits = row >= 0 && row < out.max_rows;
    out.token_rows[choice] = fits ? row : -1;
    if (!fits) return;
    out.source_row[row] = choice / top_k;
    out.weight[row] = weights[choice];
  });
}

__global__ void one_group_kernel(int32_t* starts, int32_t* counts, int32_t rows, int32_t end) {
  starts[0] = 0;
  starts[1] = end;
  counts[0] = rows;
}

}  // namespace

void one_group(Context& ctx, const ops::OneGroup& args) {
  const DeviceGuard guard(ctx);
  const ops::Groups& groups = args.groups;
  const int64_t rows = groups.max_rows();
  one_group_kernel<<<1, 1, 0, stream(ctx)>>>(device::pointer<int32_t>(groups.starts), device::pointer<int32_t>(groups.counts),
                                             narrow<int32_t>(rows), narrow<int32_t>(round_up(rows, ops::row_alignment(ctx))));
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

void build_groups(Context& ctx, const ops::BuildGroups& args) {
  const DeviceGuard guard(ctx);
  const ops::Groups& groups = args.groups;
  const SortShape shape(groups.token_rows.numel(), groups.num_experts(), args.alignment);
  const ExpertOf key{device::pointer<const int32_t>(args.experts), static_cast<uint32_t>(args.first_expert),
                     static_cast<uint32_t>(shape.bins)};
  auto* tile_counts = device::pointer<int32_t>(args.tile_counts);
  device::count_bins(ctx, shape, key, tile_counts);
  groups_kernel<<<static_cast<uint32_t>(shape.tiles), kSortThreads, 0, stream(ctx)>>>(
      shape, key, tile_counts, device::pointer<const float>(args.weights), narrow<int32_t>(groups.top_k()),
      {.starts = device::pointer<int32_t>(groups.starts),
       .counts = device::pointer<int32_t>(groups.counts),
       .source_row = device::pointer<int32_t>(groups.source_row),
       .weight = device::pointer<float>(groups.weight),
       .token_rows = device::pointer<int32_t>(groups.token_rows),
       .max_rows = narrow<int32_t>(groups.max_rows())});
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace cistron::cuda
