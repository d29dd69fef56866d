#pragma once
// Persistent grouped product. Clusters of two blocks; each block has two math warpgroups, 64 rows of the tile each, a thread that
// picks tiles, one that feeds the math warps through the copy engine, and where there are scales a warp that decodes them.
// `Mainloop` (what a K block adds: `sm90_*_mainloop.cuh`) and `Epilogue` (`sm90_epilogue.cuh`) are types; `kRagged`: the
// contraction is by expert, not the rows (`sm90_schedule.h`). Deterministic: each element of out is one chain of sums in a fixed
// order.
#include "cistron/cuda/device/wgmma.cuh"
#include "cistron/cuda/gemm/sm90_epilogue.cuh"
#include "cistron/cuda/gemm/sm90_tile.cuh"

namespace cistron::cuda::sm90 {

constexpr int kMathThreads = kMathWarps * device::kWarp;
constexpr int kThreads = kMathThreads + device::kWarpgroup;

/// The parts of shared memory, and the pipeline through them. A K block is 128 bytes of each row. k...At: where a part begins.
template <class Mainloop, class Epilogue>
struct Stages {
  static constexpr uint32_t kABytes = kTileM * 128;
  static constexpr uint32_t kBBytes = Mainloop::kTileN * 128;
  static constexpr uint32_t kStageBytes = kABytes + kBBytes;
  static constexpr int kStages = Mainloop::kStages;
  static constexpr bool kDecodes = Mainloop::kDecodedBytes > 0;
  // Of 227 KiB: 4 x 48 KiB of operands and 32 KiB of staging, or what the main loop says; the rest for scales, barriers, tiles
  // and the experts' table.
  static constexpr uint32_t kStagingBytes = Epilogue::kBuffers * kPieceBytes;  // of one warp
  static constexpr uint32_t kStagingAt = kStages * kStageBytes;
  static constexpr uint32_t kScalesAt = kStagingAt + kMathWarps * kStagingBytes;
  static constexpr uint32_t kDecodedAt = kScalesAt + kStages * Mainloop::kScaleBytes;
  static constexpr uint32_t kBarriersAt = kDecodedAt + kStages * Mainloop::kDecodedBytes;
  static constexpr uint32_t kWarpBarriersAt = kBarriersAt + Pipeline<kStages, kDecodes>::kBytes;
  static constexpr uint32_t kRingAt = kWarpBarriersAt + kMathWarps * Epilogue::kBarriers * 8;
  static constexpr uint32_t kTableAt = kRingAt + TileRing::kBytes;  // `ends`, as many as there are experts: last
  static_assert(kBarriersAt % 8 == 0);

  uint32_t base;
  Pipeline<kStages, kDecodes> pipeline{base + kBarriersAt};

  /// A warp's own.
  [[nodiscard]] __device__ uint32_t staging(int warp) const { return base + kStagingAt + warp * kStagingBytes; }
  [[nodiscard]] __device__ uint32_t barriers(int warp) const { return base + kWarpBarriersAt + warp * Epilogue::kBarriers * 8; }

  [[nodiscard]] __device__ uint32_t a() const { return base + pipeline.stage * kStageBytes; }
  [[nodiscard]] __device__ uint32_t b() const { return a() + kABytes; }
  [[nodiscard]] __device__ uint32_t scales() const { return base + kScalesAt + pipeline.stage * Mainloop::kScaleBytes; }
  [[nodiscard]] __device__ uint32_t decoded() const { return base + kDecodedAt + pipeline.stage * Mainloop::kDecodedBytes; }
};

/// Rows of a box: along the contraction half an operand's tile, one block's share; across it 64 steps of the contraction, by 64
/// rows of the operand, since 128 bytes are 64 bf16.
template <device::Major kMajor, int kRows>
constexpr int kBoxRows = kMajor == device::Major::kAlong ? kRows / kClusterSize : 64;

/// An operand's part of a stage, kRows of its rows, a box every `step` rows: all boxes for this block, or this block's share of
/// them for both. A shared box counts at the barrier of the same place in each block, so each expects whole stages, and may be
/// sent bytes before it says so.
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

/// By one thread: picks the tiles of this block.
template <class Mainloop, class Epilogue, bool kRagged>
__device__ __forceinline__ void pick(const Extent& extent, TileRing& ring, const int* ends) {
  TileWalk<kRagged, Epilogue::kTileColumns, Mainloop::kBlockK> walk(extent, ends, static_cast<int>(blockIdx.x) / kClusterSize,
                                                                    static_cast<int>(gridDim.x) / kClusterSize,
                                                                    device::cluster_rank());
  for (Tile tile; walk.next(tile);) ring.put(tile);
  ring.put({.expert = -1});
}

/// By one thread: brings a tile's operands.
template <bool kRagged, class Mainloop, class Epilogue>
__device__ __forceinline__ void feed(const Problem& p, Stages<Mainloop, Epilogue>& stages, const Tile& tile) {
  const int rank = device::cluster_rank();
  for (int block = 0; block < tile.k_blocks; ++block) {
    stages.pipeline.wait_empty();
    const uint32_t full = stages.pipeline.full();
    const int k = tile.first_k + block * Mainloop::kBlockK;
    device::barrier_expect(full, stages.kStageBytes + Mainloop::scale_bytes(p, tile));
    load_operand<Mainloop::kA, kTileM>(stages.a(), &p.a, tile.row, kBoxRows<Mainloop::kA, kTileM>, k, 0, tile.shares_a, rank,
                                       full);
    load_operand<Mainloop::kB, Mainloop::kTileN>(stages.b(), &p.b, tile.n, p.b_step, k, kRagged ? 0 : tile.expert, !tile.shares_a,
                                                 rank, full);
    Mainloop::load_scales(p, tile, k, stages.scales(), full);
    stages.pipeline.advance();
  }
}

/// By one warp: floats of the scales of a tile's stages. A full stage's floats may be overwritten: it was empty before, so nobody
/// reads the old ones.
template <class Mainloop, class Epilogue>
__device__ __forceinline__ void decode(const Problem& p, Stages<Mainloop, Epilogue>& stages, const Tile& tile) {
  for (int block = 0; block < tile.k_blocks; ++block) {
    const uint32_t weights = Mainloop::weight_scales(p, tile, block);
    stages.pipeline.wait_full();
    Mainloop::decode_scales(weights, stages.scales(), stages.decoded());
    device::barrier_arrive(stages.pipeline.decoded());
    stages.pipeline.advance();
  }
}

/// The warps that are not math warps: one picks tiles, one feeds, one decodes.
template <bool kRagged, class Mainloop, class Epilogue>
__device__ __forceinline__ void supply(const Problem& p, Stages<Mainloop, Epilogue>& stages, TileRing& ring, const int* ends) {
  const int role = device::warp_index() - kMathWarps;
  const bool first = device::lane_index() == 0;
  if (role == 0 && first) pick<Mainloop, Epilogue, kRagged>(p, ring, ends);
  if (role != 1 && (role != 2 || !stages.kDecodes)) return;
  while (true) {
    const Tile& tile = ring.get();
    if (tile.expert < 0) break;
    if (role == 2) {
      decode(p, stages, tile);
    } else if (first) {
      feed<kRagged>(p, stages, tile);
    }
    ring.release();
  }
}

/// The math warps: 16 rows of every tile each. A tile that is not stored is multiplied all the same: the other block waits for
/// this one's share of its operand, and for its stages to be handed back.
template <class Mainloop, class Epilogue>
__device__ __forceinline__ void multiply(const typename Epilogue::Args& args, Stages<Mainloop, Epilogue>& stages,
                                         TileRing& ring) {
  const MathWarp self;
  const uint32_t staging = stages.staging(device::warp_index()), barriers = stages.barriers(device::warp_index());
  while (true) {
    const Tile& tile = ring.get();
    if (tile.expert < 0) break;
    if (tile.rows > 0) Epilogue::begin(args, tile, staging, barriers);
    float d[Mainloop::kTileN / 2];
#pragma unroll
    for (float& value : d) value = 0;
    const int k_blocks = tile.k_blocks;
#pragma unroll 1
    for (int block = 0; block < k_blocks; ++block) {
      stages.pipeline.wait_full();
      Mainloop::add_block(d, stages, self);
      stages.pipeline.advance();
    }
    if (tile.rows > 0) Epilogue::finish(args, tile, staging, barriers, d);
    ring.release();
  }
  if (device::lane_index() == 0) device::wait_stores_read<0>();  // shared memory ends with the block
}

template <class Mainloop, class Epilogue, bool kRagged>
__global__ void __cluster_dims__(kClusterSize, 1, 1) __launch_bounds__(kThreads, 1)
    grouped_gemm_kernel(const __grid_constant__ Problem p, const __grid_constant__ typename Epilogue::Args args) {
  extern __shared__ __align__(1024) uint8_t shared[];
  Stages<Mainloop, Epilogue> stages{device::shared_address(shared)};
  TileRing ring{stages.base + stages.kRingAt, reinterpret_cast<Tile*>(shared + stages.kRingAt + TileRing::kBarrierBytes)};
  int* ends = reinterpret_cast<int*>(shared + stages.kTableAt);
  const int warp = device::warp_index();
  if (warp == 0) count_pairs<kRagged>(p, Epilogue::kTileColumns, ends);
  if (warp < kMathWarps && device::lane_index() == 0) Epilogue::init(stages.barriers(warp));
  if (threadIdx.x == 0) {
    ring.init(kMathWarps + 1 + stages.kDecodes);
    stages.pipeline.init();
  }
  __syncthreads();
  device::cluster_sync();

  if (warp >= kMathWarps) {
    device::give_registers<40>();  // 40 x 128 + 232 x 256 are the 168 x 384 of the launch
    supply<kRagged>(p, stages, ring, ends);
    __syncwarp();
  } else {
    device::take_registers<232>();
    multiply(args, stages, ring);
    __syncwarp();
  }
  device::cluster_sync();  // the other block may still write here, or arrive at these barriers
}

}  // namespace cistron::cuda::sm90
