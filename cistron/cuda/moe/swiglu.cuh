#pragma once
// What SwiGLU's two directions share.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/swiglu.h"

namespace cistron::cuda {

/// For bf16 by the card's own exponential and quotient: their relative error, under (|x| + 4) 2^-23, vanishes in bf16's rounding,
/// and f32's exact ones would take as long as the memory does.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) return 1.0F / (1.0F + expf(-x));
  return __fdividef(1.0F, 1.0F + __expf(-x));
}

/// The rows of `Groups`, as the kernels see them.
struct SwigluRows {
  const int32_t* source_row;
  const float* weight;
  const int32_t* end;  // the first row behind the last segment
  uint32_t chunks;     // of an [R, F] array
  device::Divisor divisor;
  int32_t row_chunks;  // of F
  int32_t rows;

  SwigluRows(const ops::Groups& groups, int64_t chunks_of_row)
      : source_row(device::pointer<const int32_t>(groups.source_row)),
        weight(device::pointer<const float>(groups.weight)),
        end(device::pointer<const int32_t>(groups.starts) + groups.num_experts()),
        chunks(narrow<uint32_t>(groups.max_rows() * chunks_of_row)),
        divisor(chunks_of_row),
        row_chunks(narrow<int32_t>(chunks_of_row)),
        rows(narrow<int32_t>(groups.max_rows())) {}
};

}  // namespace cistron::cuda
