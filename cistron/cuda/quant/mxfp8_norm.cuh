#pragma once
// The norm in the quantiser's registers: what rms_norm_forward.cu would have written, to the bit, never written.
#include "cistron/cuda/quant/mxfp8_tile.cuh"

namespace cistron::cuda {

__device__ __forceinline__ void round_to(Octet<float>& x, const float (&values)[8]) {
  x.low = {values[0], values[1], values[2], values[3]};
  x.high = {values[4], values[5], values[6], values[7]};
}
__device__ __forceinline__ void round_to(Octet<__nv_bfloat16>& x, const float (&values)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * p], values[2 * p + 1]);
    words[p] = reinterpret_cast<const uint32_t&>(pair);
  }
  x.words = {words[0], words[1], words[2], words[3]};
}

/// The thread's block of x becomes x rstd weight; `rstd` and `weight` from its first row and column on. What lies past
/// `rows_left` rows stays.
template <class T>
__device__ __forceinline__ void norm_block(const float* rstd, const float* weight, int64_t rows_left, Octet<T> (&x)[8]) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(weight)), high = __ldg(reinterpret_cast<const float4*>(weight) + 1);
  const float w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i >= rows_left) continue;
    const float r = __ldg(rstd + i);
    float values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) values[j] = x[i][j] * (r * w[j]);
    round_to(x[i], values);
  }
}

}  // namespace cistron::cuda
