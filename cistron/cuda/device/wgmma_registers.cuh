#pragma once
// Products by a warpgroup whose left operand lies in registers: d[64, N] (+)= a[64, 16] b, b [16, N] in shared memory across the
// contraction (`wgmma.cuh`). A warpgroup's sums, rounded to bf16, already lie as such an operand.
#include "cistron/cuda/device/wgmma.cuh"

namespace cistron::cuda::device {

/// Descriptor of an operand across the contraction whose panels of 64 lines are `panel_bytes` apart.
__device__ __forceinline__ uint64_t operand_across(uint32_t address, uint32_t panel_bytes) {
  constexpr uint64_t kConstant = uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
  return kConstant | static_cast<uint64_t>(panel_bytes >> 4) << 16 | (address & 0x3ffffU) >> 4;
}

/// One instruction, added to d. `a` must keep its values until the product has been waited for.
template <int N>
struct WgmmaFromRegisters;

#define CISTRON_NAMES_40 CISTRON_NAMES_30 "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39"
#define CISTRON_REGISTERS_40 CISTRON_D32(0), CISTRON_D8(32)
// A1 .. A4, B: the numbers after the registers'.
#define CISTRON_WGMMA_FROM_REGISTERS(N, D, A1, A2, A3, A4, B)                                       \
  template <>                                                                                       \
  struct WgmmaFromRegisters<N> {                                                                    \
    __device__ static __forceinline__ void add(float (&d)[D], const uint32_t (&a)[4], uint64_t b) { \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" CISTRON_NAMES_##D   \
                   "}, {%" #A1 ", %" #A2 ", %" #A3 ", %" #A4 "}, %" #B ", 1, 1, 1, 1;"              \
                   : CISTRON_REGISTERS_##D                                                          \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                           \
    }                                                                                               \
  };
CISTRON_WGMMA_FROM_REGISTERS(64, 32, 32, 33, 34, 35, 36)
CISTRON_WGMMA_FROM_REGISTERS(80, 40, 40, 41, 42, 43, 44)
CISTRON_WGMMA_FROM_REGISTERS(128, 64, 64, 65, 66, 67, 68)

}  // namespace cistron::cuda::device
