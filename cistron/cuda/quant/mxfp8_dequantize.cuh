#pragma once
// Elements times scales, 16 elements a thread. Any layout of `ops/mxfp8.h`.
#include <cuda_bf16.h>

#include <cstdint>

#include "cistron/ops/mxfp8_format.h"

namespace cistron::cuda {

/// `ops::MxOperand` for a kernel.
struct MxView {
  const uint8_t* elements = nullptr;
  const uint8_t* scales = nullptr;
  int64_t rows = 0;
  int64_t depth = 0;
  int64_t group = 128;
  int64_t block_rows = 1;
  int64_t section_rows = 0;  // 0: an activation
  int64_t row_blocks = 0;
  int64_t scale_pitch = 0;

  [[nodiscard]] __device__ int64_t scale_index(int64_t line, int64_t k) const {
    if (section_rows == 0) return k / group * scale_pitch + line;
    const int64_t e = line / rows;
    const int64_t r = line % rows;
    const int64_t section_blocks = (section_rows + block_rows - 1) / block_rows;
    const int64_t block = r / section_rows * section_blocks + r % section_rows / block_rows;
    return (e * row_blocks + block) * (depth / group) + k / group;
  }
};

__device__ __forceinline__ void store_sixteen(float* out, const float (&v)[16]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) reinterpret_cast<float4*>(out)[i] = {v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]};
}

__device__ __forceinline__ void store_sixteen(__nv_bfloat16* out, const float (&v)[16]) {
  __nv_bfloat162 pairs[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) pairs[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
  reinterpret_cast<uint4*>(out)[0] = reinterpret_cast<const uint4*>(pairs)[0];
  reinterpret_cast<uint4*>(out)[1] = reinterpret_cast<const uint4*>(pairs)[1];
}

template <class T>
__global__ void __launch_bounds__(256) mxfp8_dequantize_kernel(const MxView x, int64_t lines, T* out) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 16;
  if (at >= lines * x.depth) return;
  const float scale = ops::e8m0_to_float(__ldg(x.scales + x.scale_index(at / x.depth, at % x.depth)));
  const uint4 words = __ldg(reinterpret_cast<const uint4*>(x.elements + at));
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
  float values[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) values[i] = ops::e4m3_to_float(static_cast<uint8_t>(word[i / 4] >> (i % 4 * 8))) * scale;
  store_sixteen(out + at, values);
}

}  // namespace cistron::cuda
