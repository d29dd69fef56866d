#pragma once
// The scales of MXFP8 products (`Mxfp8Mainloop`): which there are, how they come into a stage, and how partial sums are promoted
// with them. A scaling is a type with
//   kTileN, kPart, kGroup        columns of a tile and of a partial sum; depth of a scale group
//   kStages, kBuffers, kTurns    of the pipeline, of the stores, partial sums that take turns
//   kScaleBytes, load_scales     bytes of a stage's scales, by the thread that feeds
//   kDecodedBytes, weight_scales, decode_scales      floats made of them by a warp, with weights' scales from global memory
//   (stages, self), prepare, promote                 by the math warps, for each K block: before and after a product is awaited
//   kInRegisters                 a stage's scales are not read after its last product
#include "cistron/cuda/device/tma.cuh"
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
__device__ __forceinline__ float shared_float(uint32_t address) { return __uint_as_float(shared_word(address)); }
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
__device__ __forceinline__ void store_shared(uint32_t to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, float2 value) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(value.x), "f"(value.y) : "memory");
}
/// Floats of a word's four scales.
__device__ __forceinline__ void decode_word(uint32_t word, uint32_t to) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(decode_scale(word & 0xffU)),
               "f"(decode_scale(word >> 8 & 0xffU)), "f"(decode_scale(word >> 16 & 0xffU)), "f"(decode_scale(word >> 24))
               : "memory");
}

/// d += part, rows scaled by `upper` and `lower`; `first`: of d.
template <int kAll, int kCount>
__device__ __forceinline__ void promote_rows(float (&d)[kAll], const float (&part)[kCount], int first, float upper, float lower) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) d[first + i] += (i % 4 < 2 ? upper : lower) * part[i];
}

/// Rows by expert, groups of 128, weights in blocks of 128 x 128: a tile of two such blocks, `b_step` rows apart, of
/// one weight scale each. Of A's scales a math thread wants two a K block, and decodes them itself.
struct Mxfp8Group128 {
  static constexpr int kTileN = 256;
  static constexpr int kPart = 128;
  static constexpr int kGroup = 128;
  static constexpr int kStages = 4;
  static constexpr int kBuffers = 2;
  static constexpr int kTurns = 1;
  static constexpr bool kInRegisters = true;
  static constexpr int kHalves = kTileN / kPart;
  static constexpr uint32_t kScaleBytes = kTileM;
  static constexpr uint32_t kDecodedBytes = 4 * kHalves;  // of the weights

  __device__ static uint32_t scale_bytes(const Problem&, const Tile&) { return kScaleBytes; }
  __device__ static void load_scales(const Problem& p, const Tile& tile, int k, uint32_t to, uint32_t barrier) {
    device::load_bytes(to, p.a_scales + static_cast<int64_t>(k / 128) * p.a_scale_pitch + tile.row, kScaleBytes, barrier);
  }
  __device__ static uint32_t weight_scales(const Problem& p, const Tile& tile, int block) {
    const int at = min(tile.n / kPart + device::lane_index() % kHalves * (p.b_step / kPart), p.b_scale_blocks - 1);
    return __ldg(p.b_scales + (static_cast<int64_t>(tile.expert) * p.b_scale_blocks + at) * p.b_scale_pitch + block);
  }
  __device__ static void decode_scales(uint32_t weight, uint32_t, uint32_t to) {
    if (device::lane_index() < kHalves) store_shared(to + 4 * device::lane_index(), decode_scale(weight));
  }

  float upper, lower;
  float weights[kHalves];

  template <class Stages>
  __device__ explicit Mxfp8Group128(const Stages& stages, const MathWarp& self)
      : upper(decode_scale(shared_byte(stages.scales() + self.thread_row))),
        lower(decode_scale(shared_byte(stages.scales() + self.thread_row + 8))) {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) weights[i] = shared_float(stages.decoded() + 4 * i);
  }
  __device__ void prepare(int, int) {}
  template <int kAll, int kCount>
  __device__ __forceinline__ void promote(float (&d)[kAll], const float (&part)[kCount], int half) const {
    promote_rows(d, part, half * kCount, upper * weights[half], lower * weights[half]);
  }
};

/// Contraction by expert (wgrad), groups of 128: a scale for each row and each column of the tile.
struct Mxfp8Group128Wgrad {
  static constexpr int kTileN = 256;
  static constexpr int kPart = 128;
  static constexpr int kGroup = 128;
  static constexpr int kStages = 3;
  static constexpr int kBuffers = 4;
  static constexpr int kTurns = 1;
  static constexpr bool kInRegisters = false;
  static constexpr uint32_t kScaleBytes = kTileM + kTileN;
  // Scales of columns 8i + 2j and the next one, for i = 0, 1, ... in line j: what one thread wants lies together, and its
  // neighbours' in other banks.
  static constexpr uint32_t kLine = kTileN + 16;  // bytes: kTileN / 8 pairs of floats, and what shifts the banks
  static constexpr uint32_t kDecodedBytes = 4 * kLine;

  /// The last tile's columns may end at a multiple of 128.
  __device__ static uint32_t column_bytes(const Problem& p, const Tile& tile) { return min(kTileN, p.b_scale_pitch - tile.n); }
  __device__ static uint32_t scale_bytes(const Problem& p, const Tile& tile) { return kTileM + column_bytes(p, tile); }
  __device__ static void load_scales(const Problem& p, const Tile& tile, int k, uint32_t to, uint32_t barrier) {
    const auto group = static_cast<int64_t>(k / 128);
    device::load_bytes(to, p.a_scales + group * p.a_scale_pitch + tile.row, kTileM, barrier);
    device::load_bytes(to + kTileM, p.b_scales + group * p.b_scale_pitch + tile.n, column_bytes(p, tile), barrier);
  }
  __device__ static uint32_t weight_scales(const Problem&, const Tile&, int) { return 0; }
  __device__ static void decode_scales(uint32_t, uint32_t scales, uint32_t to) {
#pragma unroll
    for (int word = device::lane_index(); word < kTileN / 4; word += device::kWarp) {
      const uint32_t bytes = shared_word(scales + kTileM + 4 * word);
      const uint32_t line = to + word % 2 * 2 * kLine + word / 2 * 8;
      store_shared(line, {decode_scale(bytes & 0xffU), decode_scale(bytes >> 8 & 0xffU)});
      store_shared(line + kLine, {decode_scale(bytes >> 16 & 0xffU), decode_scale(bytes >> 24)});
    }
  }

  static constexpr int kReady = 2;  // loads that are made while the product runs: as many as there are registers for
  float upper, lower;
  uint32_t columns;  // this thread's line
  float4 ready[kReady];

  template <class Stages>
  __device__ explicit Mxfp8Group128Wgrad(const Stages& stages, const MathWarp& self)
      : upper(decode_scale(shared_byte(stages.scales() + self.thread_row))),
        lower(decode_scale(shared_byte(stages.scales() + self.thread_row + 8))),
        columns(stages.decoded() + self.thread_pair * kLine) {}
  __device__ void prepare(int, int half) {
#pragma unroll
    for (int j = 0; j < kReady; ++j) ready[j] = shared_float4(columns + half * (kPart / 8 * 8) + 16 * j);
  }
  template <int kAll, int kCount>
  __device__ __forceinline__ void promote(float (&d)[kAll], const float (&part)[kCount], int half) const {
#pragma unroll
    for (int i = 0; i < kCount; i += 8) {
      const float4 s = i / 8 < kReady ? ready[i / 8] : shared_float4(columns + half * (kPart / 8 * 8) + 2 * i);
      const float scales[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
      for (int j = 0; j < 8; ++j)
        d[half * kCount + i + j] += (j % 4 < 2 ? upper : lower) * scales[j / 4 * 2 + j % 2] * part[i + j];
    }
  }
};

/// Rows by expert, groups of 32, weights in blocks of 96 rows x 32: a tile of two such blocks.
struct Mxfp8Group32 {
  static constexpr int kTileN = 192;
  static constexpr int kPart = 96;
  static constexpr int kGroup = 32;
  static constexpr int kStages = 4;
  static constexpr int kBuffers = 3;
  static constexpr int kTurns = 2;
  static constexpr bool kInRegisters = true;
  static constexpr uint32_t kScaleBytes = 4 * kTileM;              // [4 groups][rows]
  static constexpr uint32_t kWeights = 4 * 4 * kTileM;             // floats [4 groups][rows], then
  static constexpr uint32_t kDecodedBytes = kWeights + 4 * 4 * 2;  // [4 groups][2 halves of the columns]

  __device__ static uint32_t scale_bytes(const Problem&, const Tile&) { return kScaleBytes; }
  __device__ static void load_scales(const Problem& p, const Tile& tile, int k, uint32_t to, uint32_t barrier) {
    const uint8_t* from = p.a_scales + static_cast<int64_t>(k / 32) * p.a_scale_pitch + tile.row;
#pragma unroll
    for (int group = 0; group < 4; ++group)
      device::load_bytes(to + group * kTileM, from + group * p.a_scale_pitch, kTileM, barrier);
  }
  /// Of the first lanes' halves.
  __device__ static uint32_t weight_scales(const Problem& p, const Tile& tile, int block) {
    const int section_blocks = p.b_scale_blocks / p.sections;
    const int at = min(tile.column / kPart + device::lane_index() % 2, section_blocks - 1) + tile.section * section_blocks;
    const int64_t line = (static_cast<int64_t>(tile.expert) * p.b_scale_blocks + at) * p.b_scale_pitch;
    return __ldg(reinterpret_cast<const uint32_t*>(p.b_scales + line) + block);
  }
  __device__ static void decode_scales(uint32_t weights, uint32_t scales, uint32_t to) {
    const int lane = device::lane_index();
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      const uint32_t rows = group * kTileM + 4 * lane;
      decode_word(shared_word(scales + rows), to + 4 * rows);
      if (lane < 2) store_shared(to + kWeights + 8 * group + 4 * lane, decode_scale(weights >> 8 * group & 0xffU));
    }
  }

  uint32_t rows, columns;
  float upper, lower;
  float2 weights;

  template <class Stages>
  __device__ explicit Mxfp8Group32(const Stages& stages, const MathWarp& self)
      : rows(stages.decoded() + 4 * self.thread_row), columns(stages.decoded() + kWeights) {}
  __device__ void prepare(int group, int half) {
    if (half > 0) return;
    upper = shared_float(rows + 4 * group * kTileM);
    lower = shared_float(rows + 4 * group * kTileM + 4 * 8);
    weights = shared_float2(columns + 8 * group);
  }
  template <int kAll, int kCount>
  __device__ __forceinline__ void promote(float (&d)[kAll], const float (&part)[kCount], int half) const {
    const float weight = half == 0 ? weights.x : weights.y;
    promote_rows(d, part, half * kCount, upper * weight, lower * weight);
  }
};

}  // namespace cistron::cuda::sm90
