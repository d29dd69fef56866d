#pragma once
// For operands in bf16: the relative error, under (|x| + 4) 2^-23, vanishes in their rounding, and f32's own exponential and
// quotient would take as long as the memory does.

namespace cistron::cuda::device {

/// 1 / (1 + 2^(-x log2 e)) by the card's own instructions; subnormals count as zeros.
__device__ __forceinline__ float fast_sigmoid(float x) {
  float power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504F));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0F + power));
  return result;
}

}  // namespace cistron::cuda::device
