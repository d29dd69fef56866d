#pragma once
// The bulk copy engine: boxes of tensors, and plain runs of bytes, between global and shared memory (`runtime/tensor_map.h`).
#include <cuda.h>

#include "cistron/cuda/device/ptx.cuh"

namespace cistron::cuda::device {

/// Where a box starts: column, row, outermost index.
struct BoxStart {
  int column, row, outermost;
};

/// Brings a box here; its bytes count at `barrier`.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, BoxStart at, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.column), "r"(at.row), "r"(at.outermost)
      : "memory");
}
/// Brings it to the same place in every block of `ranks`, one bit each.
__device__ __forceinline__ void load_box_multicast(uint32_t to, const CUtensorMap* map, BoxStart at, uint32_t barrier,
                                                   uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4, %5, %6}], "
      "[%2], "
      "%3;" ::"r"(to),
      "l"(map), "r"(barrier), "h"(ranks), "r"(at.column), "r"(at.row), "r"(at.outermost)
      : "memory");
}
/// `bytes`, address and place multiples of 16.
__device__ __forceinline__ void load_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void store_box(const CUtensorMap* map, BoxStart at, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(from),
               "r"(at.column), "r"(at.row), "r"(at.outermost)
               : "memory");
}
/// Adds to what is there.
__device__ __forceinline__ void add_box(const CUtensorMap* map, BoxStart at, uint32_t from) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(from),
               "r"(at.column), "r"(at.row), "r"(at.outermost)
               : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until all but the last `kPending` groups of stores of this thread have read their shared memory.
template <int kPending>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace cistron::cuda::device
