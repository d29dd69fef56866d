#pragma once
// Tiles of attention by wgmma. Warpgroups own 64 rows each; one more warp brings tiles through the copy engine, in panels of 64
// columns of a head: rows of 128 bytes, swizzled. A panel may hold columns of the next head too: the products stop before them.
#include "cistron/cuda/attention/flash_mma.cuh"
#include "cistron/cuda/device/mbarrier.cuh"
#include "cistron/cuda/device/tma.cuh"
#include "cistron/cuda/device/wgmma_registers.cuh"
#include "cistron/cuda/runtime/tensor_map.h"

namespace cistron::cuda::flash::sm90 {

using device::Major;

template <int kD>
constexpr int kPanels = (kD + 63) / 64;
template <int kD, int kRows>
constexpr uint32_t kBytesOf = kPanels<kD> * kRows * 128;

/// A map of [T, columns] in boxes of `rows` x 64.
inline CUtensorMap map_of(const Tensor& tensor, int rows) {
  return make_tensor_map(
      {.data = tensor.raw(), .dtype = DType::kBF16, .columns = tensor.dim(1), .rows = tensor.dim(0), .box_rows = rows});
}

/// Rows from `row` on of the head that starts at `column`.
template <int kD, int kRows>
__device__ __forceinline__ void load_tile(uint32_t to, const CUtensorMap* map, int column, int row, uint32_t barrier) {
#pragma unroll
  for (int panel = 0; panel < kPanels<kD>; ++panel)
    device::load_box(to + panel * kRows * 128, map, {column + panel * 64, row, 0}, barrier);
}

/// Stages of a ring: `full` when their bytes have come and the other fillers have written, `empty` when every math warp is done
/// with them. `kRead`: lanes read a stage themselves, and each hands it back itself.
template <int kStages, bool kRead = false>
struct Ring {
  uint32_t barriers;  // full[kStages], empty[kStages]
  int stage = 0;
  uint32_t phase = 0;
  static constexpr int kBytes = 2 * kStages * 8;

  [[nodiscard]] __device__ uint32_t full() const { return barriers + stage * 8; }
  [[nodiscard]] __device__ uint32_t empty() const { return barriers + (kStages + stage) * 8; }
  __device__ void init(int fillers, int math_warps) const {
    for (int s = 0; s < kStages; ++s) {
      device::barrier_init(barriers + s * 8, fillers);
      device::barrier_init(barriers + (kStages + s) * 8, math_warps * (kRead ? device::kWarp : 1));
    }
  }
  __device__ void advance() {
    stage = stage + 1 == kStages ? 0 : stage + 1;
    phase ^= stage == 0 ? 1 : 0;
  }
  __device__ void wait_full() const { device::barrier_wait(full(), phase); }
  __device__ void wait_empty() const { device::barrier_wait(empty(), phase ^ 1); }
  __device__ void release() const {
    if (kRead || device::lane_index() == 0) device::barrier_arrive(empty());
  }
};

template <int kN>
__device__ __forceinline__ float (&flat(float (&scores)[1][kN][4]))[4 * kN] {
  return reinterpret_cast<float (&)[4 * kN]>(scores);
}

/// Queues scores[64, 8 kN] = rows x columns^T over kD; tiles of kRows and 8 kN rows.
template <int kD, int kRows, int kN>
__device__ __forceinline__ void multiply_rows(float (&scores)[1][kN][4], uint32_t rows, uint32_t columns) {
  using Mma = device::Wgmma<device::Bf16, 8 * kN, Major::kAlong, Major::kAlong>;
#pragma unroll
  for (int k = 0; k < kD / 16; ++k) {
    const uint64_t a = device::operand<Major::kAlong>(rows + k / 4 * kRows * 128) + k % 4 * device::kOperandStep<Major::kAlong>;
    const uint64_t b =
        device::operand<Major::kAlong>(columns + k / 4 * 8 * kN * 128) + k % 4 * device::kOperandStep<Major::kAlong>;
    Mma::run(flat(scores), a, b, k > 0);
  }
}

/// Scores rounded to bf16, as left operands of 16 columns each.
template <int kN>
struct LeftOperand {
  uint32_t a[kN / 2][4];
  __device__ __forceinline__ void take(const float (&scores)[1][kN][4]) {
#pragma unroll
    for (int k = 0; k < kN / 2; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[k][i] = pack(scores[0][2 * k + i / 2][i % 2 * 2], scores[0][2 * k + i / 2][i % 2 * 2 + 1]);
  }
  /// Keeps the registers until here.
  __device__ __forceinline__ void pin() {
#pragma unroll
    for (int k = 0; k < kN / 2; ++k)
#pragma unroll
      for (uint32_t& value : a[k]) asm volatile("" : "+r"(value)::"memory");
  }
};

/// Queues sums[64, kD] += left x values, over the 8 kN rows of the tile `values`.
template <int kD, int kN>
__device__ __forceinline__ void add_product(float (&sums)[1][kD / 8][4], const LeftOperand<kN>& left, uint32_t values) {
#pragma unroll
  for (int k = 0; k < kN / 2; ++k)
    device::WgmmaFromRegisters<kD>::add(flat(sums), left.a[k], device::operand_across(values + k * 16 * 128, 8 * kN * 128));
}

}  // namespace cistron::cuda::flash::sm90
