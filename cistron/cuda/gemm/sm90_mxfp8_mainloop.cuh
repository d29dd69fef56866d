#pragma once
// Products of e4m3 elements whose E8M0 scales are shared along the contraction. The tensor core adds up one scale group at most
// (it keeps about 13 fraction bits); partial sums are promoted: d += scale of row x scale of column x partial, in f32.
#include "cistron/cuda/device/tma.cuh"
#include "cistron/cuda/device/wgmma.cuh"
#include "cistron/cuda/gemm/sm90_tile.cuh"

namespace cistron::cuda::sm90 {

/// 2^(b - 127); NaN for 0xff.
__device__ __forceinline__ float decode_scale(uint32_t b) {
  const uint32_t bits = b == 0 ? 0x00400000U : b << 23;
  return __uint_as_float(b == 0xff ? 0x7fc00000U : bits);
}

__device__ __forceinline__ uint32_t shared_byte(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ uint32_t shared_word(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ float2 shared_float2(uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address));
  return value;
}
__device__ __forceinline__ float4 shared_float4(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address));
  return value;
}
/// Floats of a word's four scales.
__device__ __forceinline__ void decode_word(uint32_t word, uint32_t to) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(decode_scale(word & 0xffU)),
               "f"(decode_scale(word >> 8 & 0xffU)), "f"(decode_scale(word >> 16 & 0xffU)), "f"(decode_scale(word >> 24))
               : "memory");
}

/// The row of the tile that this thread's first accumulators belong to; the others' is 8 further.
__device__ __forceinline__ int first_row() { return device::warp_index() * 16 + device::lane_index() / 4; }

struct Mxfp8Operands {
  static constexpr device::Major kA = device::Major::kAlong;
  static constexpr device::Major kB = device::Major::kAlong;
  static constexpr int kBlockK = 128;
};

/// Starts part[64, N] = A[64, steps x 32] B[N, steps x 32]^T from two descriptors.
template <int N, int kSteps>
__device__ __forceinline__ void start_partial(float (&part)[N / 2], uint64_t a, uint64_t b) {
  using Mma = device::Wgmma<device::E4m3, N, device::Major::kAlong, device::Major::kAlong>;
  device::wgmma_pin(part);
  device::wgmma_begin();
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
    Mma::run(part, a + k * device::kOperandStep<device::Major::kAlong>, b + k * device::kOperandStep<device::Major::kAlong>,
             k > 0);
  device::wgmma_commit();
  device::wgmma_pin(part);
}

/// d[kFirst ...] += part, rows scaled by `upper` and `lower`.
template <int kFirst, int kCount, int kAll>
__device__ __forceinline__ void promote(float (&d)[kAll], const float (&part)[kCount], float upper, float lower) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) d[kFirst + i] += (i % 4 < 2 ? upper : lower) * part[i];
}

/// Rows by expert, groups of 128, weights in blocks of 128 x 128: a tile of 256 columns, promoted in halves of one weight scale
/// each.
struct Mxfp8Group128 : Mxfp8Operands {
  static constexpr int kTileN = 256;
  static constexpr int kStages = 4;
  static constexpr int kBuffers = 2;
  static constexpr uint32_t kScaleBytes = kTileM;
  static constexpr uint32_t kDecodedBytes = 0;

  __device__ static uint32_t scale_bytes(const Problem&, const Tile&) { return kScaleBytes; }
  __device__ static void load_scales(const Problem& p, const Tile& tile, int k, uint32_t to, uint32_t barrier) {
    device::load_bytes(to, p.a_scales + static_cast<int64_t>(k / 128) * p.a_scale_pitch + tile.row, kScaleBytes, barrier);
  }
  __device__ static void decode_scales(const Problem&, const Tile&, int, uint32_t, uint32_t) {}

  template <class Stages>
  __device__ static __forceinline__ void run(float (&d)[kTileN / 2], const Problem& p, Stages& stages, const Tile& tile) {
    constexpr int kHalf = kTileN / 2;
    const int row = first_row();
    const uint32_t half = device::warp_index() / 4 * device::kPanelBytes;
    const int last = p.b_scale_blocks - 1;
    const uint8_t* weights = p.b_scales + static_cast<int64_t>(tile.expert) * p.b_scale_blocks * p.b_scale_pitch;
    const uint8_t* left = weights + static_cast<int64_t>(tile.n / 128) * p.b_scale_pitch;
    const uint8_t* right = weights + static_cast<int64_t>(min(tile.n / 128 + 1, last)) * p.b_scale_pitch;
#pragma unroll
    for (float& value : d) value = 0;
    uint32_t next_left = __ldg(left);
    uint32_t next_right = __ldg(right);
#pragma unroll 1
    for (int block = 0; block < tile.k_blocks; ++block) {
      const float w_left = decode_scale(next_left);
      const float w_right = decode_scale(next_right);
      const int next = min(block + 1, tile.k_blocks - 1);
      next_left = __ldg(left + next);
      next_right = __ldg(right + next);
      stages.pipeline.wait_full();
      const float upper = decode_scale(shared_byte(stages.scales() + row));
      const float lower = decode_scale(shared_byte(stages.scales() + row + 8));
      const uint64_t a = device::operand<kA>(stages.a() + half);
      const uint64_t b = device::operand<kB>(stages.b());
      const auto multiply = [&](float (&part)[kHalf / 2], uint64_t columns) {
        start_partial<kHalf, 4>(part, a, columns);
        device::wgmma_wait<0>();
        device::wgmma_pin(part);
      };
      float part[kHalf / 2];
      multiply(part, b);
      promote<0>(d, part, upper * w_left, lower * w_left);
      multiply(part, b + (kHalf * 128 >> 4));
      stages.pipeline.release();
      stages.pipeline.advance();
      promote<kHalf / 2>(d, part, upper * w_right, lower * w_right);
    }
  }
};

/// Contraction by expert (wgrad), groups of 128: a scale for each row and each column of the tile.
struct Mxfp8Group128Wgrad : Mxfp8Operands {
  static constexpr int kTileN = 256;
  static constexpr int kStages = 3;
  static constexpr int kBuffers = 4;
  static constexpr uint32_t kScaleBytes = kTileM + kTileN;
  static constexpr uint32_t kDecodedBytes = 4 * kTileN;  // of the columns

  /// The last tile's columns may end at a multiple of 128.
  __device__ static uint32_t column_bytes(const Problem& p, const Tile& tile) { return min(kTileN, p.b_scale_pitch - tile.n); }
  __device__ static uint32_t scale_bytes(const Problem& p, const Tile& tile) { return kTileM + column_bytes(p, tile); }
  __device__ static void load_scales(const Problem& p, const Tile& tile, int k, uint32_t to, uint32_t barrier) {
    const auto group = static_cast<int64_t>(k / 128);
    device::load_bytes(to, p.a_scales + group * p.a_scale_pitch + tile.row, kTileM, barrier);
    device::load_bytes(to + kTileM, p.b_scales + group * p.b_scale_pitch + tile.n, column_bytes(p, tile), barrier);
  }
  __device__ static void decode_scales(const Problem&, const Tile&, int, uint32_t scales, uint32_t to) {
#pragma unroll
    for (int word = device::lane_index(); word < kTileN / 4; word += device::kWarp)
      decode_word(shared_word(scales + kTileM + 4 * word), to + 16 * word);
  }

  /// As `promote`, columns scaled too; `columns` is where this thread's first column's scale lies.
  template <int kFirst, int kCount, int kAll>
  __device__ static __forceinline__ void promote_columns(float (&d)[kAll], const float (&part)[kCount], float upper, float lower,
                                                         uint32_t columns) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float2 scale = shared_float2(columns + 8 * i);
      d[kFirst + i] += upper * scale.x * part[i];
      d[kFirst + i + 1] += upper * scale.y * part[i + 1];
      d[kFirst + i + 2] += lower * scale.x * part[i + 2];
      d[kFirst + i + 3] += lower * scale.y * part[i + 3];
    }
  }

  template <class Stages>
  __device__ static __forceinline__ void run(float (&d)[kTileN / 2], const Problem&, Stages& stages, const Tile& tile) {
    constexpr int kHalf = kTileN / 2;
    const int row = first_row();
    const uint32_t half = device::warp_index() / 4 * device::kPanelBytes;
#pragma unroll
    for (float& value : d) value = 0;
#pragma unroll 1
    for (int block = 0; block < tile.k_blocks; ++block) {
      stages.pipeline.wait_full();
      const uint64_t a = device::operand<kA>(stages.a() + half);
      const uint64_t b = device::operand<kB>(stages.b());
      const auto multiply = [&](float (&part)[kHalf / 2], uint64_t columns) {
        start_partial<kHalf, 4>(part, a, columns);
        device::wgmma_wait<0>();
        device::wgmma_pin(part);
      };
      float part[kHalf / 2];
      stages.pipeline.wait_decoded();
      const float upper = decode_scale(shared_byte(stages.scales() + row));
      const float lower = decode_scale(shared_byte(stages.scales() + row + 8));
      const uint32_t columns = stages.decoded() + device::lane_index() % 4 * 8;
      multiply(part, b);
      promote_columns<0>(d, part, upper, lower, columns);
      multiply(part, b + (kHalf * 128 >> 4));
      promote_columns<kHalf / 2>(d, part, upper, lower, columns + 4 * kHalf);
      __syncwarp();
      stages.pipeline.release();
      stages.pipeline.advance();
    }
  }
};

/// Rows by expert, groups of 32, weights in blocks of 96 rows x 32: a tile of 192 columns, two partial sums in turns, so that one
/// is promoted while the next is made.
struct Mxfp8Group32 : Mxfp8Operands {
  static constexpr int kTileN = 192;
  static constexpr int kHalf = kTileN / 2;
  static constexpr int kSteps = 8;  // of a K block: four groups, two halves
  static constexpr int kStages = 4;
  static constexpr int kBuffers = 3;
  static constexpr uint32_t kScaleBytes = 4 * kTileM;           // [4 groups][rows]
  static constexpr uint32_t kDecodedBytes = 16 * (kTileM + 2);  // [rows][4 groups], [2 halves of the columns][4 groups]

  __device__ static uint32_t scale_bytes(const Problem&, const Tile&) { return kScaleBytes; }
  __device__ static void load_scales(const Problem& p, const Tile& tile, int k, uint32_t to, uint32_t barrier) {
    const uint8_t* from = p.a_scales + static_cast<int64_t>(k / 32) * p.a_scale_pitch + tile.row;
#pragma unroll
    for (int group = 0; group < 4; ++group)
      device::load_bytes(to + group * kTileM, from + group * p.a_scale_pitch, kTileM, barrier);
  }

  /// Four rows a lane, their four groups turned to lie together; the first two lanes also take a half's weight scales.
  __device__ static void decode_scales(const Problem& p, const Tile& tile, int block, uint32_t scales, uint32_t to) {
    const int lane = device::lane_index();
    uint32_t groups[4];
#pragma unroll
    for (int group = 0; group < 4; ++group) groups[group] = shared_word(scales + group * kTileM + 4 * lane);
#pragma unroll
    for (int row = 0; row < 4; ++row) {
      const uint32_t low = __byte_perm(groups[0], groups[1], row | (row + 4) << 4);
      const uint32_t high = __byte_perm(groups[2], groups[3], row | (row + 4) << 4);
      decode_word(__byte_perm(low, high, 0x5410), to + 16 * (4 * lane + row));
    }
    if (lane >= 2) return;
    const int section_blocks = p.b_scale_blocks / p.sections;
    const int at = min(tile.column / kHalf + lane, section_blocks - 1) + tile.section * section_blocks;
    const int64_t line = (static_cast<int64_t>(tile.expert) * p.b_scale_blocks + at) * p.b_scale_pitch;
    decode_word(__ldg(reinterpret_cast<const uint32_t*>(p.b_scales + line) + block), to + 16 * (kTileM + lane));
  }

  template <class Stages>
  __device__ static __forceinline__ void run(float (&d)[kTileN / 2], const Problem&, Stages& stages, const Tile& tile) {
    const int row = first_row();
    const uint32_t half = device::warp_index() / 4 * device::kPanelBytes;
#pragma unroll
    for (float& value : d) value = 0;
#pragma unroll 1
    for (int block = 0; block < tile.k_blocks; ++block) {
      stages.pipeline.wait_full();
      const uint64_t a = device::operand<kA>(stages.a() + half);
      const uint64_t b = device::operand<kB>(stages.b());
      const auto start = [&](float (&part)[kHalf / 2], int step) {
        start_partial<kHalf, 1>(part, a + step / 2 * device::kOperandStep<kA>,
                                b + step % 2 * (kHalf * 128 >> 4) + step / 2 * device::kOperandStep<kB>);
      };
      float parts[2][kHalf / 2];
      start(parts[0], 0);
      stages.pipeline.wait_decoded();
      const float4 uppers = shared_float4(stages.decoded() + 16 * row);
      const float4 lowers = shared_float4(stages.decoded() + 16 * (row + 8));
      const float4 weights[2] = {shared_float4(stages.decoded() + 16 * kTileM),
                                 shared_float4(stages.decoded() + 16 * (kTileM + 1))};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        float (&part)[kHalf / 2] = parts[step % 2];
        if (step < kSteps - 1) start(parts[(step + 1) % 2], step + 1);
        const int group = step / 2;
        const auto of_group = [&](const float4& v) { return group == 0 ? v.x : group == 1 ? v.y : group == 2 ? v.z : v.w; };
        const float upper = of_group(uppers) * of_group(weights[step % 2]);
        const float lower = of_group(lowers) * of_group(weights[step % 2]);
        if (step < kSteps - 1) {
          device::wgmma_wait<1>();
        } else {
          device::wgmma_wait<0>();
          stages.pipeline.release();
          stages.pipeline.advance();
        }
        device::wgmma_pin(part);
        if (step % 2 == 0) {
          promote<0>(d, part, upper, lower);
        } else {
          promote<kHalf / 2>(d, part, upper, lower);
        }
      }
    }
  }
};

}  // namespace cistron::cuda::sm90
