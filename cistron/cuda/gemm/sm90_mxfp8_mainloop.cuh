#pragma once
// Products of e4m3 elements whose E8M0 scales are shared along the contraction. The tensor core adds up one scale group at most
// (it keeps about 13 fraction bits); partial sums are promoted: d += scale of row x scale of column x partial, in f32.
#include "cistron/cuda/device/wgmma.cuh"
#include "cistron/cuda/gemm/sm90_tile.cuh"

namespace cistron::cuda::sm90 {

/// Starts part[64, N] = A[64, steps x 32] B[N, steps x 32]^T from two descriptors.
template <int N, int kSteps>
__device__ __forceinline__ void start_partial(float (&part)[N / 2], uint64_t a, uint64_t b) {
  using Mma = device::Wgmma<device::E4m3, N, device::Major::kAlong, device::Major::kAlong>;
  device::wgmma_pin(part);
  device::wgmma_begin();
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
    Mma::run(part, a + k * device::kOperandStep<device::Major::kAlong>, b + k * device::kOperandStep<device::Major::kAlong>,
             k > 0);
  device::wgmma_commit();
  device::wgmma_pin(part);
}

/// A K block is made in kSteps partial sums, each of kPart columns and one scale group. `Scaling` says what scales there are, and
/// how many partial sums take turns: with two, one is made while the other is promoted. (Products on their way from one K block
/// to the next make ptxas serialise them all.)
template <class Scaling>
struct Mxfp8Mainloop : Scaling {
  static constexpr device::Major kA = device::Major::kAlong;
  static constexpr device::Major kB = device::Major::kAlong;
  static constexpr int kBlockK = 128;
  using Scaling::kTileN;

  template <class Stages>
  __device__ static __forceinline__ void add_block(float (&d)[kTileN / 2], const Stages& stages, const MathWarp& self) {
    Partial parts[kTurns];
    start(parts[0], stages, self, 0);  // which needs no scales
    stages.pipeline.wait_decoded();
    Scaling scaling(stages, self);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const bool last = step + 1 == kSteps;
      Partial& part = parts[step % kTurns];
      Partial& next = parts[(step + 1) % kTurns];
      scaling.prepare(step / kAcross, step % kAcross);
      if (kTurns > 1 && !last) {
        start(next, stages, self, step + 1);
        device::wgmma_wait<1>();
      } else {
        device::wgmma_wait<0>();
      }
      device::wgmma_pin(part);
      if (last && Scaling::kInRegisters) stages.pipeline.release();
      scaling.promote(d, part, step % kAcross);
      if (kTurns == 1 && !last) start(next, stages, self, step + 1);
    }
    if (!Scaling::kInRegisters) stages.pipeline.release();
  }

 private:
  static constexpr int kPart = Scaling::kPart;
  static constexpr int kTurns = Scaling::kTurns;
  static constexpr int kAcross = kTileN / kPart;
  static constexpr int kSteps = kAcross * kBlockK / Scaling::kGroup;
  using Partial = float[kPart / 2];

  template <class Stages>
  __device__ static __forceinline__ void start(Partial& part, const Stages& stages, const MathWarp& self, int step) {
    const uint64_t along = step / kAcross * (Scaling::kGroup >> 4);
    start_partial<kPart, Scaling::kGroup / 32>(part, device::operand<kA>(stages.a() + self.panel) + along,
                                               device::operand<kB>(stages.b()) + step % kAcross * (kPart * 128 >> 4) + along);
  }
};

}  // namespace cistron::cuda::sm90
