#pragma once
// Persistent grouped product. Clusters of two blocks; each block has two math warpgroups, 64 rows of the tile each, one thread
// that feeds them through the copy engine, and where scales are many a warp that decodes them. `Mainloop` and `Epilogue` are
// types (`sm90_*_mainloop.cuh`, `sm90_epilogue.cuh`). Deterministic: each element of out is one chain of sums in a fixed order.
#include "cistron/cuda/device/wgmma.cuh"
#include "cistron/cuda/gemm/sm90_epilogue.cuh"
#include "cistron/cuda/gemm/sm90_tile.cuh"

namespace cistron::cuda::sm90 {

constexpr int kMathThreads = kMathWarps * device::kWarp;
constexpr int kThreads = kMathThreads + device::kWarpgroup;

/// The parts of shared memory, and the pipeline through them.
template <class Mainloop, class Epilogue>
struct Stages {
  static constexpr uint32_t kABytes = kTileM * 128;
  static constexpr uint32_t kBBytes = Mainloop::kTileN * 128;
  static constexpr uint32_t kStageBytes = kABytes + kBBytes;
  static constexpr int kStages = Mainloop::kStages;
  // Of 227 KiB: 4 x 48 KiB of operands and 32 KiB of staging, or 3 x 48 and 64; the rest for scales, barriers and the experts'
  // table.
  static constexpr uint32_t kStagingBytes = Epilogue::kBuffers * kPieceBytes;  // of one warp
  static constexpr uint32_t kStaging = kStages * kStageBytes;
  static constexpr uint32_t kScales = kStaging + kMathWarps * kStagingBytes;
  static constexpr uint32_t kDecoded = kScales + kStages * Mainloop::kScaleBytes;
  static constexpr uint32_t kBarriers = kDecoded + kStages * Mainloop::kDecodedBytes;
  static constexpr uint32_t kWarpBarriers = kBarriers + Pipeline<kStages>::kBytes;
  static constexpr uint32_t kTable = kWarpBarriers + kMathWarps * Epilogue::kBarriers * 8;

  uint32_t base;
  Pipeline<kStages> pipeline{base + kBarriers};

  /// A warp's own.
  [[nodiscard]] __device__ uint32_t staging(int warp) const { return base + kStaging + warp * kStagingBytes; }
  [[nodiscard]] __device__ uint32_t barriers(int warp) const { return base + kWarpBarriers + warp * Epilogue::kBarriers * 8; }

  [[nodiscard]] __device__ uint32_t a() const { return base + pipeline.stage * kStageBytes; }
  [[nodiscard]] __device__ uint32_t b() const { return a() + kABytes; }
  [[nodiscard]] __device__ uint32_t scales() const { return base + kScales + pipeline.stage * Mainloop::kScaleBytes; }
  [[nodiscard]] __device__ uint32_t decoded() const { return base + kDecoded + pipeline.stage * Mainloop::kDecodedBytes; }
};

/// Rows of a box: half an operand's tile along the contraction; 64 steps of it across, which is 64 rows of the operand too.
template <device::Major kMajor, int kRows>
constexpr int kBoxRows = kMajor == device::Major::kAlong ? kRows / kClusterSize : 64;

/// An operand's part of a stage, kRows of its rows, a box every `step` rows: all boxes for this block, or this block's share of
/// them for both.
template <device::Major kMajor, int kRows>
__device__ __forceinline__ void load_operand(uint32_t to, const CUtensorMap* map, int row, int step, int k, int outermost,
                                             bool shared, int rank, uint32_t barrier) {
  constexpr int kBox = kBoxRows<kMajor, kRows>;
  constexpr int kShare = kRows / kBox / kClusterSize;
  const auto at = [&](int box) -> device::BoxStart {
    if (kMajor == device::Major::kAlong) return {k, row + step * box, outermost};
    return {row + step * box, k, outermost};
  };
  if (shared) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int box = rank * kShare + i;
      device::load_box_multicast(to + box * kBox * 128, map, at(box), barrier, (1 << kClusterSize) - 1);
    }
    return;
  }
#pragma unroll
  for (int box = 0; box < kShare * kClusterSize; ++box) device::load_box(to + box * kBox * 128, map, at(box), barrier);
}

template <class Mainloop, class Epilogue, bool kRagged>
__device__ __forceinline__ void feed(const Problem& p, Stages<Mainloop, Epilogue>& stages, const int* ends) {
  TileWalk<kRagged, Epilogue::kTileColumns, Mainloop::kBlockK> walk(p, ends);
  const int rank = device::cluster_rank();
  for (Tile tile; walk.next(tile);) {
    for (int block = 0; block < tile.k_blocks; ++block) {
      stages.pipeline.wait_empty();
      const uint32_t full = stages.pipeline.full();
      const int k = tile.first_k + block * Mainloop::kBlockK;
      device::barrier_expect(full, stages.kStageBytes + Mainloop::scale_bytes(p, tile));
      load_operand<Mainloop::kA, kTileM>(stages.a(), &p.a, tile.row, kBoxRows<Mainloop::kA, kTileM>, k, 0, tile.shares_a, rank, full);
      load_operand<Mainloop::kB, Mainloop::kTileN>(stages.b(), &p.b, tile.n, p.b_step, k, kRagged ? 0 : tile.expert, !tile.shares_a, rank,
                                                   full);
      Mainloop::load_scales(p, tile, k, stages.scales(), full);
      stages.pipeline.advance();
    }
  }
}

/// By one warp: floats of each stage's scales.
template <class Mainloop, class Epilogue, bool kRagged>
__device__ __forceinline__ void decode(const Problem& p, Stages<Mainloop, Epilogue>& stages, const int* ends) {
  TileWalk<kRagged, Epilogue::kTileColumns, Mainloop::kBlockK> walk(p, ends);
  for (Tile tile; walk.next(tile);) {
    for (int block = 0; block < tile.k_blocks; ++block) {
      stages.pipeline.wait_full();
      Mainloop::decode_scales(p, tile, block, stages.scales(), stages.decoded());
      device::barrier_arrive(stages.pipeline.decoded());
      stages.pipeline.advance();
    }
  }
}

template <class Mainloop, class Epilogue, bool kRagged>
__device__ __forceinline__ void multiply(const Problem& p, const typename Epilogue::Args& args,
                                         Stages<Mainloop, Epilogue>& stages, const int* ends) {
  TileWalk<kRagged, Epilogue::kTileColumns, Mainloop::kBlockK> walk(p, ends);
  const int warp = device::warp_index();
  const uint32_t staging = stages.staging(warp), barriers = stages.barriers(warp);
  for (Tile tile; walk.next(tile);) {
    float d[Mainloop::kTileN / 2];
    if (tile.rows > 0) Epilogue::begin(args, tile, staging, barriers);
    Mainloop::run(d, p, stages, tile);
    if (tile.rows > 0) Epilogue::finish(args, tile, staging, barriers, d);
  }
  if (device::lane_index() == 0) device::wait_stores_read<0>();
}

template <class Mainloop, class Epilogue, bool kRagged>
__global__ void __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ Problem p, const __grid_constant__ typename Epilogue::Args args) {
  extern __shared__ __align__(1024) uint8_t shared[];
  Stages<Mainloop, Epilogue> stages{device::shared_address(shared)};
  int* ends = reinterpret_cast<int*>(shared + stages.kTable);
  const int warp = device::warp_index();
  if (warp == 0) count_pairs<kRagged>(p, Epilogue::kTileColumns, ends);
  if (warp < kMathWarps && device::lane_index() == 0) Epilogue::init(stages.barriers(warp));
  if (threadIdx.x == 0) stages.pipeline.init();
  __syncthreads();
  device::cluster_sync();

  if (warp >= kMathWarps) {
    device::give_registers<40>();
    if (warp == kMathWarps && device::lane_index() == 0) feed<Mainloop, Epilogue, kRagged>(p, stages, ends);
    if (Mainloop::kDecodedBytes > 0 && warp == kMathWarps + 1) decode<Mainloop, Epilogue, kRagged>(p, stages, ends);
    __syncwarp();
  } else {
    device::take_registers<232>();
    multiply<Mainloop, Epilogue, kRagged>(p, args, stages, ends);
    __syncwarp();
  }
  device::cluster_sync();  // the other block may still write here, or arrive at these barriers
}

}  // namespace cistron::cuda::sm90
