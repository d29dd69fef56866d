#pragma once
// Instructions without a C++ name. Lanes, warps and shared addresses of any card; registers, fences and clusters of sm_90a.
#include <cstdint>

namespace cistron::cuda::device {

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

/// The same number in every lane, known to the compiler as such. The whole warp must call it: one lane alone waits for ever.
__device__ __forceinline__ int warp_index() { return __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarp, 0); }
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }

/// Moves registers between warpgroups: all four warps of each must execute it. Takes effect under __launch_bounds__(threads, 1).
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// Makes this thread's ordinary writes to shared memory visible to the copy engine and the tensor cores.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace cistron::cuda::device
