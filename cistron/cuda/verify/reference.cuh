#pragma once
// Grouped products in float64 on the card, one warp for each output, and how far a result is from them.
#include "cistron/cuda/verify/device_tensor.cuh"
#include "cistron/ops/mxfp8.h"

namespace cistron::cuda::verify {

/// Element (mn, k) of expert e's operand: a bf16 or f32 number, or an e4m3 element times its E8M0 scale.
struct RefOperand {
  const void* data = nullptr;
  int width = 2;
  int64_t mn_stride = 0, k_stride = 1, e_stride = 0;
  const uint8_t* scales = nullptr;
  int64_t mn_block = 1, k_block = 1, mn_scale = 0, k_scale = 0, e_scale = 0;
  int64_t section = int64_t{1} << 40, section_blocks = 0;  // weights: rows in a section, scale blocks in it

  __device__ double at(int64_t mn, int64_t k, int64_t e) const {
    const int64_t i = mn * mn_stride + k * k_stride + e * e_stride;
    if (width == 4) return static_cast<const float*>(data)[i];
    if (width == 2) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    __nv_fp8_e4m3 element;
    element.__x = static_cast<const uint8_t*>(data)[i];
    const int64_t block = mn / section * section_blocks + mn % section / mn_block;
    const uint8_t b = scales[block * mn_scale + k / k_block * k_scale + e * e_scale];
    return static_cast<double>(static_cast<float>(element)) * (b == 0xff ? nan("") : ldexp(1.0, b - 127));
  }
};

struct RefProduct {
  RefOperand a, b;
  const void* out = nullptr;
  int out_width = 2;
  const float* before = nullptr;  // what was accumulated onto
  const int32_t* starts = nullptr;
  const int32_t* counts = nullptr;
  int experts = 0;
  bool ragged = false;  // the contraction is by expert
  int64_t m = 0, n = 0, k = 0;
  int64_t rows = 0;  // all experts' rows
  int64_t omit = 0;  // steps of the contraction left out, for negative controls
  int late = -1;     // an expert whose A is read one row late, likewise
};

struct Deviation {
  double error2, reference2;
  unsigned long long different, not_finite;
  [[nodiscard]] double relative() const {
    return not_finite > 0 || !(reference2 > 0) ? INFINITY : std::sqrt(error2 / reference2);
  }
};

static __global__ void deviation_kernel(RefProduct p, int64_t samples, int64_t outputs, uint64_t seed, Deviation* result) {
  const int64_t warp = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  for (int64_t s = warp; s < samples; s += int64_t{gridDim.x} * blockDim.x / 32) {
    const int64_t index = samples == outputs ? s : mix(seed + s) % outputs;
    const int64_t n = index % p.n;
    int64_t m = index / p.n;
    int e = 0;
    if (p.ragged) {
      e = m / p.m;
      m %= p.m;
    } else {
      while (m >= p.counts[e]) m -= p.counts[e++];
    }
    const int64_t first = p.starts[e];
    const int64_t first_a = first + (e == p.late);
    const int64_t depth = (p.ragged ? p.counts[e] : p.k) - p.omit;
    double sum = 0;
    for (int64_t k = lane; k < depth; k += 32)
      sum += p.ragged ? p.a.at(m, first_a + k, 0) * p.b.at(n, first + k, 0) : p.a.at(first_a + m, k, 0) * p.b.at(n, k, e);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
    if (lane != 0) continue;
    const int64_t o = (p.ragged ? e * p.m + m : first + m) * p.n + n;
    if (p.before != nullptr) sum += p.before[o];
    const double got =
        p.out_width == 4 ? static_cast<const float*>(p.out)[o] : __bfloat162float(static_cast<const __nv_bfloat16*>(p.out)[o]);
    atomicAdd(&result->error2, (got - sum) * (got - sum));
    atomicAdd(&result->reference2, sum * sum);
    if (got != sum) atomicAdd(&result->different, 1ULL);
    if (!isfinite(got)) atomicAdd(&result->not_finite, 1ULL);
  }
}

/// Over all outputs, or over `samples` drawn at random where there are many more.
inline Deviation deviation(const RefProduct& p, int64_t samples = 0, uint64_t seed = 1) {
  const int64_t outputs = (p.ragged ? p.experts * p.m : p.rows) * p.n;
  if (samples == 0 || outputs <= 4 * samples) samples = outputs;
  const DeviceTensor space({static_cast<int64_t>(sizeof(Deviation))}, DType::kU8);
  zero(space);
  auto* result = static_cast<Deviation*>(space.get().raw());
  deviation_kernel<<<2048, 256>>>(p, samples, outputs, seed, result);
  CISTRON_CUDA_CHECK(cudaGetLastError());
  Deviation host{};
  CISTRON_CUDA_CHECK(cudaMemcpy(&host, result, sizeof host, cudaMemcpyDeviceToHost));
  return host;
}

/// A matrix [.., mn, k], or with `across` [.., k, mn].
inline RefOperand ref_operand(const Tensor& t, bool across = false) {
  const int rank = t.shape().rank();
  const int64_t pitch = t.dim(rank - 1);
  return {.data = t.raw(),
          .width = static_cast<int>(size_of(t.dtype())),
          .mn_stride = across ? 1 : pitch,
          .k_stride = across ? pitch : 1,
          .e_stride = rank == 3 ? t.dim(1) * pitch : 0};
}

inline RefOperand ref_operand(const ops::MxOperand& x) {
  RefOperand r = ref_operand(x.elements);
  r.scales = x.scales.data<uint8_t>();
  r.mn_block = x.block_rows;
  r.k_block = x.group;
  r.mn_scale = x.is_weight() ? x.num_groups() : 1;
  r.k_scale = x.is_weight() ? 1 : x.scales.dim(1);
  r.e_scale = x.is_weight() ? x.row_blocks() * x.num_groups() : 0;
  if (x.is_weight()) {
    r.section = x.rows() / x.sections;
    r.section_blocks = x.row_blocks() / x.sections;
  }
  return r;
}

inline RefProduct ref_product(const RefOperand& a, const RefOperand& b, const Tensor& out, const TestGroups& g) {
  const int rank = out.shape().rank();
  return {.a = a,
          .b = b,
          .out = out.raw(),
          .out_width = static_cast<int>(size_of(out.dtype())),
          .starts = g.groups.starts.data<int32_t>(),
          .counts = g.groups.counts.data<int32_t>(),
          .experts = static_cast<int>(g.counts.size()),
          .ragged = rank == 3,
          .m = out.dim(rank - 2),
          .n = out.dim(rank - 1),
          .rows = g.total()};
}

}  // namespace cistron::cuda::verify
