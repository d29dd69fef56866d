#pragma once
// Shared-memory stages between the copy engine and the math warpgroups of both blocks of a cluster. A stage is full when its
// bytes have come, decoded when a warp has made floats of its scales (where the main loop wants that), and empty when the math
// warps of both blocks are done with it, since either block's copies may write into both.
#include "cistron/cuda/device/mbarrier.cuh"

namespace cistron::cuda::sm90 {

constexpr int kClusterSize = 2;
constexpr int kMathWarps = 8;

/// `kRead` (the kernel's `kDecodes`: the main loop decodes scales): lanes read a stage themselves, and each hands it back itself
/// to its own block, whose copies and decoding write what they read. The other block's copies write operands alone, which the
/// tensor core reads: there a lane arrives for its warp, whose products are over.
template <int kStages, bool kRead>
struct Pipeline {
  uint32_t barriers;  // full[kStages], empty[kStages], decoded[kStages]
  int stage = 0;
  uint32_t phase = 0;  // every role has its own copy of these two, and walks all K blocks of all tiles in the same order

  static constexpr int kBytes = 3 * kStages * 8;
  static constexpr int kLocal = kRead ? device::kWarp : 1;  // arrivals of a warp at its own block's barrier

  [[nodiscard]] __device__ uint32_t full() const { return barriers + stage * 8; }
  [[nodiscard]] __device__ uint32_t empty() const { return barriers + (kStages + stage) * 8; }

  [[nodiscard]] __device__ uint32_t decoded() const { return barriers + (2 * kStages + stage) * 8; }

  /// By one thread.
  __device__ void init() const {
    for (int s = 0; s < kStages; ++s) {
      device::barrier_init(barriers + s * 8, 1);
      device::barrier_init(barriers + (kStages + s) * 8, kMathWarps * (kLocal + kClusterSize - 1));
      device::barrier_init(barriers + (2 * kStages + s) * 8, device::kWarp);
    }
    device::fence_barrier_init();
  }
  __device__ void advance() {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    phase ^= stage == 0 ? 1 : 0;
  }
  __device__ void wait_full() const { device::barrier_wait(full(), phase); }
  __device__ void wait_decoded() const { device::barrier_wait(decoded(), phase); }
  /// At once in the first round: the phase before a new barrier's first counts as over.
  __device__ void wait_empty() const { device::barrier_wait(empty(), phase ^ 1); }
  /// By every math warp, when its products and all its lanes have read the stage.
  __device__ void release() const {
    const int lane = device::lane_index();
    if (kRead) device::barrier_arrive(empty());
    const int rank = kRead ? static_cast<int>(device::cluster_rank()) ^ 1 : lane;
    if (lane < kClusterSize - (kRead ? 1 : 0)) device::barrier_arrive(empty(), rank);
  }
};

}  // namespace cistron::cuda::sm90
