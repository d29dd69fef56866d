#pragma once
// Arrays as chunks of 16 bytes, the widest load and store: what kernels bound by memory move at a time, and compute on as floats.
// Where a row's length or place is no multiple of that, a chunk is one element (kWidth 1).
#include <cuda_bf16.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "cistron/core/checked.h"
#include "cistron/core/tensor.h"

namespace cistron::cuda::device {

constexpr int kChunkBytes = 16;

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth < kChunkBytes ? sizeof(T) * kWidth : kChunkBytes) Chunk {
  T at[kWidth];
};

template <int kWidth>
using Floats = Chunk<float, kWidth>;

template <int kWidth, class T>
__device__ __forceinline__ Chunk<T, kWidth> load_chunk(const T* data, int64_t chunk) {
  return reinterpret_cast<const Chunk<T, kWidth>*>(data)[chunk];
}

__device__ __forceinline__ float as_float(float x) { return x; }
__device__ __forceinline__ float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void put(float& to, float x) { to = x; }
__device__ __forceinline__ void put(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }

template <class T, int kWidth>
__device__ __forceinline__ Floats<kWidth> floats(const Chunk<T, kWidth>& chunk) {
  Floats<kWidth> out;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) out.at[i] = as_float(chunk.at[i]);
  return out;
}

/// Hides where the chunk came from, so that the compiler keeps its 16 bytes across what follows, not the floats made of them.
template <class T, int kWidth>
__device__ __forceinline__ void keep_packed(Chunk<T, kWidth>& chunk) {
  if constexpr (sizeof(chunk) == kChunkBytes) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(reinterpret_cast<uint32_t*>(chunk.at)[i]));
  }
}

template <class T, int kWidth>
__device__ __forceinline__ Chunk<T, kWidth> rounded(const Floats<kWidth>& values) {
  Chunk<T, kWidth> out;
  if constexpr (std::is_same_v<T, __nv_bfloat16> && kWidth % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kWidth; i += 2)
      reinterpret_cast<__nv_bfloat162*>(out.at)[i / 2] = __floats2bfloat162_rn(values.at[i], values.at[i + 1]);
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) out.at[i] = T(values.at[i]);
  }
  return out;
}

template <int kWidth, class T>
__device__ __forceinline__ void store_chunk(T* data, int64_t chunk, const Floats<kWidth>& values) {
  reinterpret_cast<Chunk<T, kWidth>*>(data)[chunk] = rounded<T, kWidth>(values);
}

template <int kWidth, class T>
__device__ __forceinline__ void zero_chunk(T* data, int64_t chunk) {
  store_chunk<kWidth>(data, chunk, Floats<kWidth>{});
}

/// Whether lines of `elements` elements of `tensor` can be cut into chunks of `width`.
inline bool fits_chunks(const Tensor& tensor, int64_t elements, int width) {
  const int64_t bytes = width * size_of(tensor.dtype());
  return elements % width == 0 && reinterpret_cast<uintptr_t>(tensor.raw()) % std::min<int64_t>(bytes, kChunkBytes) == 0;
}

template <class T, int kWidth>
struct ChunkOf {
  using Element = T;
  static constexpr int kElements = kWidth;
};

/// f(ChunkOf<T, kWidth>{}) for tensors [..., `line`], the first of which has T: float or bf16.
template <class F>
void with_chunks(int64_t line, std::initializer_list<const Tensor*> tensors, F&& f) {
  const auto pick = [&]<class T>(T) {
    constexpr int kWide = kChunkBytes / static_cast<int>(sizeof(T));
    for (const Tensor* tensor : tensors)
      if (!fits_chunks(*tensor, line, kWide)) return f(ChunkOf<T, 1>{});
    f(ChunkOf<T, kWide>{});
  };
  const DType dtype = (*tensors.begin())->dtype();
  CISTRON_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "no arithmetic on {}", name_of(dtype));
  dtype == DType::kF32 ? pick(float{}) : pick(__nv_bfloat16{});
}

template <class T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.raw());
}

/// n / divisor for n < 2^31 by a multiplication (Granlund & Montgomery, "Division by invariant integers", 1994).
class Divisor {
 public:
  explicit Divisor(int64_t divisor) : divisor_(narrow<uint32_t>(divisor < 1 ? 1 : divisor)) {
    while ((uint64_t{1} << shift_) < divisor_) ++shift_;
    multiplier_ = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift_) - divisor_) / divisor_ + 1);
  }
  __device__ __forceinline__ uint32_t quotient(uint32_t n) const { return (__umulhi(n, multiplier_) + n) >> shift_; }
  __device__ __forceinline__ uint32_t remainder(uint32_t n, uint32_t quotient) const { return n - quotient * divisor_; }

 private:
  uint32_t divisor_, multiplier_ = 0, shift_ = 0;
};

/// Blocks for `work` items, `each` by a block. Kernels count in 31 bits.
inline uint32_t blocks_for(int64_t work, int64_t each) {
  CISTRON_CHECK(work < (int64_t{1} << 31), "{} pieces of work are more than one launch takes", work);
  return narrow<uint32_t>(ceil_div(work, each));
}

}  // namespace cistron::cuda::device
