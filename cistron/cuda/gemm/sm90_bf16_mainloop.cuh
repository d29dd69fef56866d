#pragma once
// d[64, 256] of each math warpgroup += A[64, 64] B[256, 64]^T in bf16, for each K block. While one warpgroup hands a stage back,
// the other's products keep the tensor cores busy.
#include "cistron/cuda/device/wgmma.cuh"
#include "cistron/cuda/gemm/sm90_tile.cuh"

namespace cistron::cuda::sm90 {

template <device::Major kMajorA, device::Major kMajorB, int kStageCount = 4>
struct Bf16Mainloop {
  static constexpr device::Major kA = kMajorA;
  static constexpr device::Major kB = kMajorB;
  static constexpr int kTileN = 256;
  static constexpr int kBlockK = 64;
  static constexpr int kStages = kStageCount;
  static constexpr int kBuffers = 2;  // of each warp, where the product is stored as it is (`Store`)
  static constexpr uint32_t kScaleBytes = 0;
  static constexpr uint32_t kDecodedBytes = 0;

  __device__ static uint32_t scale_bytes(const Problem&, const Tile&) { return 0; }
  __device__ static void load_scales(const Problem&, const Tile&, int, uint32_t, uint32_t) {}
  __device__ static uint32_t weight_scales(const Problem&, const Tile&, int) { return 0; }
  __device__ static void decode_scales(uint32_t, uint32_t, uint32_t) {}

  template <class Stages>
  __device__ static __forceinline__ void add_block(float (&d)[kTileN / 2], const Stages& stages, const MathWarp& self) {
    using Mma = device::Wgmma<device::Bf16, kTileN, kA, kB>;
    const uint64_t a = device::operand<kA>(stages.a() + self.panel);
    const uint64_t b = device::operand<kB>(stages.b());
    device::wgmma_pin(d);
    device::wgmma_begin();
#pragma unroll
    for (int k = 0; k < kBlockK / 16; ++k) Mma::run(d, a + k * device::kOperandStep<kA>, b + k * device::kOperandStep<kB>, true);
    device::wgmma_commit();
    device::wgmma_pin(d);
    device::wgmma_wait<0>();
    device::wgmma_pin(d);
    stages.pipeline.release();
  }
};

}  // namespace cistron::cuda::sm90
