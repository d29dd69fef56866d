// Dense products on ordinary cores, sums in f32 in the order of k: f32, and bf16 of sizes that tensor cores do not take. A block
// has 256 threads and one tile; where tiles are few and the contraction is long, it is cut into parts that are summed in order.
#include <cuda_bf16.h>

#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/gemm/dense.h"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/matmul.h"

namespace cistron::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kDepth = 16;  // of the contraction, a step

using device::as_float;

/// Sums of kPerM x kPerN a thread: kPerM neighbouring rows, columns by fours.
template <int kTileM, int kTileN, int kThreadM, int kThreadN>
struct TileShape {
  static constexpr int kM = kTileM;
  static constexpr int kN = kTileN;
  static constexpr int kPerM = kThreadM;
  static constexpr int kPerN = kThreadN;
  static constexpr int kAcross = kN / kPerN;  // threads along n
  /// Of a thread's column number j.
  __device__ static int column(int j) { return j / 4 * 4 * kAcross + static_cast<int>(threadIdx.x) % kAcross * 4 + j % 4; }
  static_assert(kM / kPerM * kAcross == kThreads);
};
using SquareTile = TileShape<128, 128, 8, 8>;
using TallTile = TileShape<128, 32, 4, 4>;
using WideTile = TileShape<32, 128, 4, 4>;

template <class In>
struct SimtOperand {
  const In* data;
  int64_t line_step, k_step;  // one of them 1
  int64_t lines;
};

template <class In>
struct SimtProblem {
  SimtOperand<In> a, b;
  void* out;
  int64_t out_pitch;
  int64_t m, n, k;
  int64_t part;  // of the contraction that a block sums; a multiple of kDepth
  bool accumulate, out_bf16, whole_words;
  float* partial;  // [parts, m, n] where there are several
};

/// What a thread brings of kLines x kDepth, one step ahead, in registers: kCount elements, evenly spaced along the lines (operand
/// along the contraction) or along the contraction (across).
template <class In, int kLines>
struct Fetch {
  static constexpr int kCount = kLines * kDepth / kThreads;
  bool along;
  int line, depth;  // of the first element
  const In* from;   // that element at the step at hand
  int64_t step;     // from one element to the next
  int64_t k_step;
  int lines;  // that exist from this tile's first on
  float values[kCount];

  __device__ __forceinline__ Fetch(const SimtOperand<In>& operand, int64_t first, int64_t k)
      : along(operand.k_step == 1), k_step(operand.k_step) {
    const int thread = static_cast<int>(threadIdx.x);
    line = along ? thread / kDepth : thread % kLines;
    depth = along ? thread % kDepth : thread / kLines;
    from = operand.data + (first + line) * operand.line_step + (k + depth) * k_step;
    step = along ? kThreads / kDepth * operand.line_step : kThreads / kLines * k_step;
    lines = static_cast<int>(operand.lines - first < kLines ? operand.lines - first : kLines);
  }
  /// `left`: of the contraction, from this step on.
  __device__ __forceinline__ void load(int64_t left) {
    const int depths = static_cast<int>(left < kDepth ? left : kDepth);  // none behind the end
    const int limit = along ? (depth < depths ? lines - line : 0) : (line < lines ? depths - depth : 0);
    const int spacing = along ? kThreads / kDepth : kThreads / kLines;
#pragma unroll
    for (int i = 0; i < kCount; ++i) values[i] = i * spacing < limit ? as_float(from[i * step]) : 0.0F;
    from += kDepth * k_step;
  }
  __device__ __forceinline__ void store(float (&to)[kDepth][kLines + 4]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      (along ? to[depth][line + i * (kThreads / kDepth)] : to[depth + i * (kThreads / kLines)][line]) = values[i];
  }
};

template <class In>
__device__ __forceinline__ void put(const SimtProblem<In>& p, int64_t m, int64_t n, float sum) {
  if (p.partial != nullptr) {
    p.partial[(static_cast<int64_t>(blockIdx.z) * p.m + m) * p.n + n] = sum;
    return;
  }
  const int64_t at = m * p.out_pitch + n;
  if (p.out_bf16) {
    static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16_rn(sum);
    return;
  }
  float& to = static_cast<float*>(p.out)[at];
  to = p.accumulate ? to + sum : sum;
}

/// Four neighbours; whole 16-byte words where they are f32, aligned and overwritten.
template <class In>
__device__ __forceinline__ void put_4(const SimtProblem<In>& p, int64_t m, int64_t n, const float* sums) {
  if (p.whole_words && n + 4 <= p.n) {
    float* to = p.partial != nullptr ? p.partial + (static_cast<int64_t>(blockIdx.z) * p.m + m) * p.n + n
                                     : static_cast<float*>(p.out) + m * p.out_pitch + n;
    *reinterpret_cast<float4*>(to) = {sums[0], sums[1], sums[2], sums[3]};
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (n + i < p.n) put(p, m, n + i, sums[i]);
}

template <class In, class Tile>
__global__ void __launch_bounds__(kThreads, Tile::kPerM < 8 ? 2 : 1) simt_dense_kernel(const SimtProblem<In> p) {
  __shared__ alignas(16) float a[kDepth][Tile::kM + 4];
  __shared__ alignas(16) float b[kDepth][Tile::kN + 4];
  const int64_t m0 = static_cast<int64_t>(blockIdx.x) * Tile::kM;
  const int64_t n0 = static_cast<int64_t>(blockIdx.y) * Tile::kN;
  const int64_t begin = static_cast<int64_t>(blockIdx.z) * p.part;
  const int64_t end = begin + p.part < p.k ? begin + p.part : p.k;
  const int m = static_cast<int>(threadIdx.x) / Tile::kAcross * Tile::kPerM;

  Fetch<In, Tile::kM> next_a(p.a, m0, begin);
  Fetch<In, Tile::kN> next_b(p.b, n0, begin);
  next_a.load(end - begin);
  next_b.load(end - begin);
  float sums[Tile::kPerM][Tile::kPerN] = {};
  for (int64_t k = begin; k < end; k += kDepth) {
    __syncthreads();
    next_a.store(a);
    next_b.store(b);
    __syncthreads();
    next_a.load(end - k - kDepth);
    next_b.load(end - k - kDepth);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      float left[Tile::kPerM];
      float right[Tile::kPerN];
#pragma unroll
      for (int i = 0; i < Tile::kPerM; ++i) left[i] = a[d][m + i];
#pragma unroll
      for (int j = 0; j < Tile::kPerN; ++j) right[j] = b[d][Tile::column(j)];
#pragma unroll
      for (int i = 0; i < Tile::kPerM; ++i)
#pragma unroll
        for (int j = 0; j < Tile::kPerN; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < Tile::kPerM; ++i)
#pragma unroll
    for (int j = 0; j < Tile::kPerN; j += 4)
      if (m0 + m + i < p.m) put_4(p, m0 + m + i, n0 + Tile::column(j), sums[i] + j);
}

/// Parts in order, then what was there.
template <class In>
__global__ void add_parts_kernel(SimtProblem<In> p, int parts) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= p.m * p.n) return;
  float sum = 0;
  for (int part = 0; part < parts; ++part) sum += p.partial[part * p.m * p.n + index];
  p.partial = nullptr;
  put(p, index / p.n, index % p.n, sum);
}

/// Enough blocks for a large card, parts of 256 or more, and no more than the workspace takes. Of sizes alone, so that the order
/// of sums does not depend on the card.
int64_t parts_of(int64_t tiles, const DenseProduct& p) {
  constexpr int64_t kBlocks = 264;
  constexpr int64_t kShortest = 256;
  const int64_t fitting = ops::kDenseWorkspaceBytes / 4 / (p.m * p.n);
  return std::max<int64_t>(1, std::min({kBlocks / tiles, p.k / kShortest, fitting}));
}

template <class In>
SimtOperand<In> simt_operand(const DenseOperand& operand, int64_t lines) {
  return {.data = static_cast<const In*>(operand.data),
          .line_step = operand.along ? operand.pitch : 1,
          .k_step = operand.along ? 1 : operand.pitch,
          .lines = lines};
}

template <class In, class Tile>
void launch(Context& ctx, const DenseProduct& p) {
  const int64_t m_tiles = ceil_div(p.m, Tile::kM);
  const int64_t n_tiles = ceil_div(p.n, Tile::kN);
  CISTRON_CHECK(n_tiles <= 65535, "[dense_product] {} columns", p.n);
  const int64_t wanted = parts_of(m_tiles * n_tiles, p);
  SimtProblem<In> problem{.a = simt_operand<In>(p.a, p.m),
                          .b = simt_operand<In>(p.b, p.n),
                          .out = p.out,
                          .out_pitch = p.out_pitch,
                          .m = p.m,
                          .n = p.n,
                          .k = p.k,
                          .part = round_up(ceil_div(p.k, wanted), kDepth),
                          .accumulate = p.accumulate,
                          .out_bf16 = p.out_dtype == DType::kBF16};
  const auto parts = static_cast<int>(ceil_div(p.k, problem.part));
  if (parts > 1) problem.partial = static_cast<float*>(p.workspace);
  const bool aligned = reinterpret_cast<uintptr_t>(p.out) % 16 == 0 && p.out_pitch % 4 == 0 && !p.accumulate;
  problem.whole_words = parts > 1 ? p.n % 4 == 0 : aligned && p.out_dtype == DType::kF32;
  const dim3 blocks(static_cast<unsigned>(m_tiles), static_cast<unsigned>(n_tiles), static_cast<unsigned>(parts));
  simt_dense_kernel<In, Tile><<<blocks, kThreads, 0, stream(ctx)>>>(problem);
  CISTRON_CUDA_CHECK(cudaGetLastError());
  if (parts == 1) return;
  add_parts_kernel<<<static_cast<unsigned>(ceil_div(p.m * p.n, kThreads)), kThreads, 0, stream(ctx)>>>(problem, parts);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

template <class In>
void choose_tile(Context& ctx, const DenseProduct& p) {
  if (p.n <= 64) return launch<In, TallTile>(ctx, p);
  if (p.m <= 64) return launch<In, WideTile>(ctx, p);
  launch<In, SquareTile>(ctx, p);
}

}  // namespace

void simt_dense(Context& ctx, const DenseProduct& p) {
  p.in == DType::kF32 ? choose_tile<float>(ctx, p) : choose_tile<__nv_bfloat16>(ctx, p);
}

}  // namespace cistron::cuda
