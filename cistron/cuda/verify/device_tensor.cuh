#pragma once
// What the tests and benchmarks on a card share: a context, tensors that own device memory, random and poisoned contents, groups.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <memory>
#include <vector>

#include "cistron/core/checked.h"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/groups.h"

namespace cistron::cuda::verify {

inline Context cuda_context() {
  Context ctx;
  ctx.device = {DeviceKind::kCuda, 0};
  return ctx;
}

/// A tensor and its memory on the card.
class DeviceTensor {
 public:
  DeviceTensor(const Shape& shape, DType dtype) {
    void* data = nullptr;
    CISTRON_CUDA_CHECK(cudaMalloc(&data, std::max<int64_t>(shape.numel() * size_of(dtype), 16)));
    memory_ = {data, cudaFree};
    tensor_ = Tensor::view(data, shape, dtype, {DeviceKind::kCuda, 0});
  }
  template <class T>
  explicit DeviceTensor(const std::vector<T>& values) : DeviceTensor({static_cast<int64_t>(values.size())}, dtype_of<T>()) {
    CISTRON_CUDA_CHECK(cudaMemcpy(tensor_.raw(), values.data(), tensor_.bytes(), cudaMemcpyHostToDevice));
  }
  [[nodiscard]] const Tensor& get() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }  // NOLINT(google-explicit-constructor)

 private:
  std::shared_ptr<void> memory_;
  Tensor tensor_;
};

inline std::vector<uint8_t> bytes_of(const Tensor& t) {
  std::vector<uint8_t> bytes(t.bytes());
  CISTRON_CUDA_CHECK(cudaMemcpy(bytes.data(), t.raw(), bytes.size(), cudaMemcpyDeviceToHost));
  return bytes;
}

/// Every byte 0xff: NaN in bf16, f32, e4m3 and E8M0.
inline void poison(const Tensor& t) { CISTRON_CUDA_CHECK(cudaMemset(t.raw(), 0xff, t.bytes())); }
inline void zero(const Tensor& t) { CISTRON_CUDA_CHECK(cudaMemset(t.raw(), 0, t.bytes())); }

/// How random contents are drawn: scale x (standard normal, or an integer in [-range, range]); bytes: e4m3 values, or E8M0
/// scales.
struct Draw {
  uint64_t seed = 1;
  float scale = 1;
  int integers = 0;           // above 0: integers of at most this magnitude
  int smallest_exponent = 0;  // E8M0: bytes in [smallest, smallest + exponents)
  int exponents = 0;
};

__device__ inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

__device__ inline float draw(const Draw& d, uint64_t i) {
  const uint64_t h = mix(d.seed * 0x9e3779b97f4a7c15ULL + i);
  if (d.integers > 0) return d.scale * static_cast<float>(static_cast<int>(h % (2 * d.integers + 1)) - d.integers);
  const float u = (static_cast<float>(h & 0xffffffU) + 1) * 0x1p-24F;
  const float v = static_cast<float>(h >> 40) * 0x1p-24F;
  return d.scale * sqrtf(-2 * logf(u)) * cospif(2 * v);
}

static __global__ void fill_kernel(void* data, int width, int64_t count, Draw d) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    if (width == 4) static_cast<float*>(data)[i] = draw(d, i);
    if (width == 2) static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16(draw(d, i));
    if (width != 1) continue;
    const uint8_t exponent = d.smallest_exponent + mix(d.seed + 77 * i) % max(d.exponents, 1);
    static_cast<uint8_t*>(data)[i] = d.exponents > 0 ? exponent : __nv_fp8_e4m3(draw(d, i)).__x;
  }
}

inline void fill(const Tensor& t, const Draw& d) {
  fill_kernel<<<1024, 256>>>(t.raw(), static_cast<int>(size_of(t.dtype())), t.numel(), d);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

inline DeviceTensor random_device_tensor(const Shape& shape, DType dtype, const Draw& d) {
  DeviceTensor t(shape, dtype);
  fill(t, d);
  return t;
}

/// Groups with these counts, segments at multiples of 128; `spare` rows follow the last segment.
struct TestGroups {
  std::vector<int32_t> counts, starts{0};
  DeviceTensor device_counts, device_starts;
  ops::Groups groups;

  explicit TestGroups(const std::vector<int32_t>& wanted, int spare = 0)
      : counts(wanted), starts(starts_of(wanted)), device_counts(counts), device_starts(starts) {
    groups.counts = device_counts;
    groups.starts = device_starts;
    groups.source_row = Tensor::view(nullptr, {starts.back() + spare}, DType::kI32, {DeviceKind::kCuda, 0});
  }
  [[nodiscard]] int64_t rows() const { return groups.max_rows(); }
  [[nodiscard]] int64_t total() const {
    int64_t sum = 0;
    for (const int32_t c : counts) sum += c;
    return sum;
  }
  static std::vector<int32_t> starts_of(const std::vector<int32_t>& counts) {
    std::vector<int32_t> starts{0};
    for (const int32_t c : counts) starts.push_back(starts.back() + static_cast<int32_t>(round_up(c, 128)));
    return starts;
  }
};

/// Counts for many experts: none, few and more than a tile of 128 rows.
inline std::vector<int32_t> mixed_counts(int experts) {
  std::vector<int32_t> counts;
  for (int e = 0; e < experts; ++e) counts.push_back(e % 5 == 0 ? 0 : e * 53 % 200);
  return counts;
}

/// Sets the pad rows of `t` [R, ...], and what lies past the last segment, to a byte.
inline void set_pad_rows(const Tensor& t, const TestGroups& g, int byte) {
  const int64_t pitch = t.bytes() / t.dim(0);
  for (size_t e = 0; e <= g.counts.size(); ++e) {
    const int64_t from = e < g.counts.size() ? g.starts[e] + g.counts[e] : g.starts[e];
    const int64_t to = e < g.counts.size() ? g.starts[e + 1] : t.dim(0);
    CISTRON_CUDA_CHECK(cudaMemset(static_cast<char*>(t.raw()) + from * pitch, byte, (to - from) * pitch));
  }
}

}  // namespace cistron::cuda::verify
