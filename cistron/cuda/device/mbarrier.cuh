#pragma once
// Barriers in shared memory that count arrivals and bytes. Phases alternate 0, 1, 0, ...; a wait names the phase that must be
// over.
#include "cistron/cuda/device/ptx.cuh"

namespace cistron::cuda::device {

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/// After the inits, before a cluster_sync: the copy engine and the other block see them.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t phase) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, 0x989680;\n"
      "@done bra OVER;\nbra AGAIN;\nOVER:\n}" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

/// One arrival that also announces how many bytes the copy engine will bring.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives at the barrier that lies at this address in block `rank` of the cluster. Releases what this block's threads see:
/// enough to hand back a stage that was only read. (.release.cluster would put a fence over the whole card's memory in front, see
/// bench/NOTES.md.)
__device__ __forceinline__ void barrier_arrive(uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

}  // namespace cistron::cuda::device
