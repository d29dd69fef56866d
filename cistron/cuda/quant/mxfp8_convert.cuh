#pragma once
// Floats to E4M3 and back in registers. sm_89 and later have an instruction; before, the host's arithmetic runs as it is.
#include <cstdint>

#include "cistron/ops/mxfp8_format.h"

namespace cistron::cuda {

/// Two elements, `first` in the lower byte. As `ops::e4m3_from_float`, bit for bit.
__device__ __forceinline__ uint32_t e4m3_pair(float first, float second) {
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return ops::e4m3_from_float(first) | static_cast<uint32_t>(ops::e4m3_from_float(second)) << 8;
#endif
}

__device__ __forceinline__ uint32_t e4m3_four(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  uint32_t four;  // in one asm, so that the second conversion keeps the first's bytes
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}"
      : "=r"(four)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return four;
#else
  return __byte_perm(e4m3_pair(a, b), e4m3_pair(c, d), 0x5410);
#endif
}

}  // namespace cistron::cuda
