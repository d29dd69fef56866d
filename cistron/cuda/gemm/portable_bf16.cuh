#pragma once
// Grouped products in bf16 with what every card since sm_80 has: mma.sync m16n8k16 with f32 accumulators, ldmatrix, and cp.async
// into a ring of shared-memory stages. 128 x 256 tiles, 64 of the contraction a stage; 8 warps of 64 x 64, 128 accumulators a
// thread. A stage is (128 + 256) x 64 x 2 = 48 KiB: four on sm_90, three on sm_80, two on sm_86 and sm_89. Deterministic: one
// block sums one tile, in order.
#include <cuda_bf16.h>

#include "cistron/cuda/device/mma.cuh"
#include "cistron/cuda/gemm/portable_problem.cuh"

namespace cistron::cuda {

namespace portable {

constexpr int kM = 128;
constexpr int kN = 256;
constexpr int kK = 64;
constexpr int kThreads = 256;
constexpr int kStageBytes = (kM + kN) * kK * 2;

using device::commit;
using device::copy_16;
using device::load_matrices;
using device::mma;
using device::shared_address;
using device::wait;

/// kLines of one operand by 64 of the contraction in shared memory. Along: kLines lines of 8 pieces of 16 bytes; across: 64 lines
/// of kLines / 8 pieces. Pieces are permuted within each eight by the line's number, so that ldmatrix meets no bank twice.
template <int kLines, bool kAlong>
struct OperandStage {
  static constexpr int kPieces = kAlong ? kK / 8 : kLines / 8;  // a line
  static constexpr int kCopies = kLines * kK / 8 / kThreads;    // a thread
  static constexpr int kStep = kThreads / kPieces;              // lines between a thread's copies

  __device__ static uint32_t offset(int line, int piece) {
    return static_cast<uint32_t>((line * kPieces + (piece ^ line % 8)) * 16);
  }

  /// `lines`: of the operand that exist; `depth`: of the contraction that is left.
  __device__ __forceinline__ static void fetch(uint32_t stage, const __nv_bfloat16* from, int64_t pitch, int lines, int depth) {
    const int line = static_cast<int>(threadIdx.x) / kPieces;
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    const int lines_left = piece * 8 < (kAlong ? depth : lines) ? (kAlong ? lines : depth) - line : 0;
    const uint32_t to = stage + offset(line, piece);
    from += line * pitch + piece * 8;
    asm("" : "+l"(from));  // or the compiler keeps a pointer for every copy, and the sums spill
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      copy_16(to + static_cast<uint32_t>(i * kStep * kPieces * 16), from + i * kStep * pitch, i * kStep < lines_left);
  }

  // Fragments are 16 lines x 16 of the contraction, four 8 x 8 matrices. A lane's address for the first one at `line` (a multiple
  // of 64) is kept; the others differ by a constant or, where the pieces are permuted, in two bits.
  //   A's registers: (low lines, low k), (high, low), (low, high), (high, high)
  //   B's:           (low lines, low k), (low, high), (high, low), (high, high)
  __device__ __forceinline__ static uint32_t lane_address_a(int line) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return kAlong ? offset(line + lane % 16, lane / 16) : offset(lane / 16 * 8 + lane % 8, line / 8 + lane / 8 % 2);
  }
  __device__ __forceinline__ static uint32_t lane_address_b(int line) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return kAlong ? offset(line + lane / 16 * 8 + lane % 8, lane / 8 % 2)
                  : offset(lane / 8 % 2 * 8 + lane % 8, line / 8 + lane / 16);
  }
  /// Fragment `i` of four, at k = 16 `k16`.
  __device__ __forceinline__ static void load(uint32_t (&r)[4], uint32_t lane_address, int i, int k16) {
    const int turned = kAlong ? k16 : i;
    const int straight = kAlong ? i : k16;
    load_matrices<!kAlong>(r,
                           (lane_address ^ static_cast<uint32_t>(turned * 32)) + static_cast<uint32_t>(straight * 256 * kPieces));
  }
};

/// What a warp multiplies at once: 64 lines of A and of B by 16 of the contraction.
template <class A, class B>
struct WarpFragments {
  uint32_t a[4][4];
  uint32_t b[4][4];
  __device__ __forceinline__ void load(uint32_t a_address, uint32_t b_address, int k16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) A::load(a[i], a_address, i, k16);
#pragma unroll
    for (int j = 0; j < 4; ++j) B::load(b[j], b_address, j, k16);
  }
};

/// A warp's 64 x 64 of sums.
struct WarpSums {
  float d[4][8][4] = {};

  template <class Fragments>
  __device__ __forceinline__ void add(const Fragments& f) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) mma(d[i][j], f.a[i], f.b[j / 2][j % 2 * 2], f.b[j / 2][j % 2 * 2 + 1]);
  }
};

/// What becomes of two neighbouring sums.
struct StoreF32 {
  using Out = float;
  __device__ __forceinline__ static void put(float* to, float x, float y, bool inside) {
    if (inside) *reinterpret_cast<float2*>(to) = {x, y};
  }
};
struct StoreBf16 {
  using Out = __nv_bfloat16;
  __device__ __forceinline__ static void put(__nv_bfloat16* to, float x, float y, bool inside) {
    if (inside) *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(x, y);
  }
};
/// L2 adds, so nobody waits for an old value. One block owns each element: the order is fixed. Sums under 2^-126 become zero.
struct AddF32 {
  using Out = float;
  // Predicated by hand: with branches around them the sums spill.
  __device__ __forceinline__ static void put(float* to, float x, float y, bool inside) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p red.global.add.v2.f32 [%0], {%1, %2};}" ::"l"(to), "f"(x), "f"(y),
                 "r"(static_cast<int>(inside))
                 : "memory");
#else
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %3, 0; @p red.global.add.f32 [%0], %1; @p red.global.add.f32 [%0+4], %2;}" ::"l"(to),
        "f"(x), "f"(y), "r"(static_cast<int>(inside))
        : "memory");
#endif
  }
};

template <class Epilogue>
__device__ __forceinline__ void put_sums(const WarpSums& sums, typename Epilogue::Out* out, int64_t pitch, int m, int n, int rows,
                                         int columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const int row = m + i * 16 + high * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int column = n + j * 8 + lane % 4 * 2;
        Epilogue::put(out + row * pitch + column, sums.d[i][j][2 * high], sums.d[i][j][2 * high + 1],
                      row < rows && column < columns);
      }
    }
}

/// The ring of stages, and what is being copied into it.
template <bool kAAlong, bool kBAlong, int kStages>
struct Ring {
  using A = OperandStage<kM, kAAlong>;
  using B = OperandStage<kN, kBAlong>;
  uint32_t base;

  [[nodiscard]] __device__ uint32_t stage(int step) const { return base + static_cast<uint32_t>(step % kStages) * kStageBytes; }
  __device__ __forceinline__ void fetch(const PortableProblem& p, const PortableTile<__nv_bfloat16>& tile, int step) const {
    const int k = step * kK;
    if (k < tile.k) {
      A::fetch(stage(step), tile.a + (kAAlong ? k : k * p.a_pitch), p.a_pitch, tile.m, tile.k - k);
      B::fetch(stage(step) + kM * kK * 2, tile.b + (kBAlong ? k : k * p.b_pitch), p.b_pitch, tile.n, tile.k - k);
    }
    commit();  // an empty group too, so that the count of groups in flight stays right
  }
  __device__ __forceinline__ void begin(const PortableProblem& p, const PortableTile<__nv_bfloat16>& tile) const {
    for (int step = 0; step < kStages - 1; ++step) fetch(p, tile, step);
  }
  /// The oldest stage still in flight is whole, and every warp has read the one before it.
  __device__ __forceinline__ void advance() const {
    wait<kStages - 2>();
    __syncthreads();
  }
};

}  // namespace portable

template <class Epilogue, bool kAAlong, bool kBAlong, int kStages>
__global__ void __launch_bounds__(portable::kThreads, 1) portable_bf16_kernel(const PortableProblem p) {
  using namespace portable;
  using Stages = Ring<kAAlong, kBAlong, kStages>;
  extern __shared__ __align__(128) uint8_t shared[];
  const Stages ring{shared_address(shared)};
  const int m = static_cast<int>(threadIdx.x) / 128 * 64;
  const int n = static_cast<int>(threadIdx.x) % 128 / 32 * 64;
  const uint32_t a_lane = Stages::A::lane_address_a(m);
  const uint32_t b_lane = Stages::B::lane_address_b(n) + kM * kK * 2;

  ExpertWalk walk;
  PortableTile<__nv_bfloat16> tile;
  auto index = static_cast<int32_t>(blockIdx.x);
  bool more = portable_tile<__nv_bfloat16, kM, kN, kAAlong, kBAlong>(p, walk, index, tile);
  if (more) ring.begin(p, tile);
  while (more) {
    const int steps = (tile.k + kK - 1) / kK;
    WarpSums sums;
    WarpFragments<typename Stages::A, typename Stages::B> now[2];  // loaded one product ahead, across stages too
    if (steps > 0) {
      ring.advance();
      now[0].load(ring.stage(0) + a_lane, ring.stage(0) + b_lane, 0);
    }
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int i = 0; i < kK / 16; ++i) {
        if (i + 1 < kK / 16) {
          now[(i + 1) % 2].load(ring.stage(step) + a_lane, ring.stage(step) + b_lane, i + 1);
        } else {
          ring.advance();
          if (step + 1 < steps) now[0].load(ring.stage(step + 1) + a_lane, ring.stage(step + 1) + b_lane, 0);
        }
        if (i == 0) ring.fetch(p, tile, step + kStages - 1);
        sums.add(now[i % 2]);
      }
    }
    // The last advance() freed every stage: the next tile's copies start before this one's stores.
    const PortableTile<__nv_bfloat16> done = tile;
    index += static_cast<int32_t>(gridDim.x);
    more = portable_tile<__nv_bfloat16, kM, kN, kAAlong, kBAlong>(p, walk, index, tile);
    if (more) ring.begin(p, tile);
    put_sums<Epilogue>(sums, static_cast<typename Epilogue::Out*>(p.out) + done.out, p.n, m, n, done.m, done.n);
  }
}

}  // namespace cistron::cuda
