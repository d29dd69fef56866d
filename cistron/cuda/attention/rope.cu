// A block has a few tokens: it takes the sines of their angles once, in f64 as the CPU does, and turns all heads by them.
#include <cmath>

#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/attention.h"

namespace cistron::cuda {
namespace {

using device::Chunk, device::Floats;

constexpr int kThreads = 256;
constexpr int kMaxHalf = 256;  // of a head
constexpr int kUnroll = 2;

/// theta^(-2i/D) by the host's pow, which the CPU's rotation uses too.
struct Frequencies {
  double at[kMaxHalf];
};

struct RopeProblem {
  const int32_t* positions;
  void* qkv;
  int32_t tokens;
  int32_t tokens_per_block;
  int32_t heads;        // that turn
  int32_t half_chunks;  // of half a head
  int32_t row_chunks;   // of a token
  device::Divisor by_half_chunks, by_token;
  bool inverse;
};

template <int kWidth>
__device__ __forceinline__ void fill_angles(const RopeProblem& p, const Frequencies& frequency, int begin, int count,
                                            float* cosines, float* sines) {
  const int half = p.half_chunks * kWidth;
  for (int i = static_cast<int>(threadIdx.x); i < count * half; i += kThreads) {
    const int token = i / half;
    double sine, cosine;
    sincos(static_cast<double>(p.positions[begin + token]) * frequency.at[i - token * half], &sine, &cosine);
    cosines[i] = static_cast<float>(cosine);
    sines[i] = static_cast<float>(p.inverse ? -sine : sine);
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, 4) rope_kernel(RopeProblem p, const __grid_constant__ Frequencies frequency) {
  extern __shared__ float angles[];  // [2, tokens, half]: cosines, sines
  const int half = p.half_chunks * kWidth;
  const int begin = static_cast<int>(blockIdx.x) * p.tokens_per_block, count = min(p.tokens_per_block, p.tokens - begin);
  float *cosines = angles, *sines = angles + p.tokens_per_block * half;
  fill_angles<kWidth>(p, frequency, begin, count, cosines, sines);
  __syncthreads();
  T* qkv = static_cast<T*>(p.qkv) + int64_t{begin} * p.row_chunks * kWidth;
  const uint32_t pairs = count * p.heads * p.half_chunks;
  for (uint32_t first = threadIdx.x; first < pairs; first += kThreads * kUnroll) {
    Chunk<T, kWidth> low[kUnroll], high[kUnroll];
    int at[kUnroll], angle[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const uint32_t pair = first + i * kThreads;
      if (pair >= pairs) continue;
      const uint32_t token = p.by_token.quotient(pair), within = p.by_token.remainder(pair, token);
      const uint32_t head = p.by_half_chunks.quotient(within), chunk = p.by_half_chunks.remainder(within, head);
      at[i] = static_cast<int>(token * p.row_chunks + head * 2 * p.half_chunks + chunk);
      angle[i] = static_cast<int>(token) * p.half_chunks + static_cast<int>(chunk);
      low[i] = device::load_chunk<kWidth>(static_cast<const T*>(qkv), at[i]);
      high[i] = device::load_chunk<kWidth>(static_cast<const T*>(qkv), at[i] + p.half_chunks);
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (first + i * kThreads >= pairs) continue;
      const auto a = device::floats(low[i]), b = device::floats(high[i]);
      Floats<kWidth> turned_a, turned_b;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const float c = cosines[angle[i] * kWidth + e], s = sines[angle[i] * kWidth + e];
        turned_a.at[e] = a.at[e] * c - b.at[e] * s;
        turned_b.at[e] = b.at[e] * c + a.at[e] * s;
      }
      device::store_chunk<kWidth>(qkv, at[i], turned_a);
      device::store_chunk<kWidth>(qkv, at[i] + p.half_chunks, turned_b);
    }
  }
}

Frequencies frequencies(double theta, int64_t half) {
  Frequencies f{};
  for (int64_t i = 0; i < half; ++i) f.at[i] = std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
  return f;
}

}  // namespace

void rope(Context& ctx, const ops::Rope& args) {
  const DeviceGuard guard(ctx);
  const int64_t half = args.shape.head_dim / 2, tokens = args.qkv.dim(0);
  CISTRON_CHECK(half <= kMaxHalf, "[rope] heads of {}; on CUDA at most {}", args.shape.head_dim, 2 * kMaxHalf);
  if (tokens == 0) return;
  device::with_chunks(half, {&args.qkv}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    const int64_t heads = args.shape.num_heads + args.shape.num_kv_heads, half_chunks = half / kWidth;
    const int64_t per_block = 8;
    const RopeProblem p{.positions = device::pointer<const int32_t>(args.positions),
                        .qkv = args.qkv.raw(),
                        .tokens = narrow<int32_t>(tokens),
                        .tokens_per_block = per_block,
                        .heads = narrow<int32_t>(heads),
                        .half_chunks = narrow<int32_t>(half_chunks),
                        .row_chunks = narrow<int32_t>(args.shape.qkv_width() / kWidth),
                        .by_half_chunks = device::Divisor(half_chunks),
                        .by_token = device::Divisor(heads * half_chunks),
                        .inverse = args.inverse};
    const auto bytes = static_cast<size_t>(2 * per_block * half) * sizeof(float);
    rope_kernel<T, kWidth><<<device::blocks_for(tokens, per_block), kThreads, bytes, stream(ctx)>>>(
        p, frequencies(static_cast<double>(args.theta), half));
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace cistron::cuda
