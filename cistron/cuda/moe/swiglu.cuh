#pragma once
// What SwiGLU's two directions share.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/sigmoid.cuh"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/swiglu.h"

namespace cistron::cuda {

template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (std::is_same_v<T, float>) return 1.0F / (1.0F + expf(-x));
  return device::fast_sigmoid(x);
}

/// The activation, in the order in which everybody multiplies.
template <class T>
__device__ __forceinline__ float swiglu(float gate, float up, float weight) {
  return gate * sigmoid<T>(gate) * up * weight;
}

/// Of one element, and the activation again; `dweight`: its part of the weight's gradient.
struct SwigluGradients {
  float dgate, dup, dweight, act;
};
template <class T>
__device__ __forceinline__ SwigluGradients swiglu_gradients(float d, float gate, float up, float weight) {
  const float sig = sigmoid<T>(gate);
  const float silu = gate * sig;
  return {.dgate = d * weight * up * (sig * (1.0F + gate * (1.0F - sig))),
          .dup = d * weight * silu,
          .dweight = d * silu * up,
          .act = silu * up * weight};
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
