#pragma once
// Positions in the order of their tokens, by passes of 9 bits. A pass keeps a few multiprocessors busy and the memory idle:
// meanwhile the others write the rows of tokens that do not occur.
#include <algorithm>
#include <bit>

#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/counting_sort.cuh"
#include "cistron/ops/embedding.h"

namespace cistron::cuda {

constexpr int kDigitBits = 9;
constexpr int32_t kNoToken = INT32_MAX;  // of a position that counts nothing; behind all others in the order

struct TokenKey {
  const int32_t* tokens;
  int32_t vocab;
  __device__ int32_t operator()(int32_t position) const {
    const int32_t token = position < 0 ? -1 : tokens[position];
    return token < 0 || token >= vocab ? kNoToken : token;
  }
};

struct DigitKey {
  TokenKey token;
  const int32_t* order;  // null: as they come
  int32_t shift;
  int32_t mask;
  [[nodiscard]] __device__ int position(int i) const { return order == nullptr ? i : order[i]; }
  __device__ int operator()(int i) const {
    const int32_t key = token(position(i));
    return key == kNoToken ? -1 : key >> shift & mask;
  }
};

/// Rows of f32 that get zeros where their token does not occur; blocks of kRows of them, the first of which is `first_block`.
struct AbsentRows {
  static constexpr int kRows = 64;
  TokenKey token;
  int32_t num_tokens;
  float* rows;
  int64_t width;
  bool wide;  // chunks of four are possible
  int32_t first_block;

  __device__ __forceinline__ void write(int block) const {
    __shared__ uint32_t present[kRows / device::kWarp];
    if (threadIdx.x < std::size(present)) present[threadIdx.x] = 0;
    __syncthreads();
    const int begin = (first_block + block) * kRows;
    for (int i = static_cast<int>(threadIdx.x); i < num_tokens; i += device::kSortThreads)
      if (const uint32_t row = static_cast<uint32_t>(token(i) - begin); row < kRows)
        atomicOr(&present[row / device::kWarp], 1U << row % device::kWarp);
    __syncthreads();
    for (int row = static_cast<int>(threadIdx.x) / device::kWarp; row < min(kRows, token.vocab - begin);
         row += device::kSortWarps) {
      if (present[row / device::kWarp] >> row % device::kWarp & 1U) continue;
      float* line = rows + int64_t{begin + row} * width;
      for (int64_t c = device::lane_index(); c < (wide ? width / 4 : width); c += device::kWarp)
        wide ? device::zero_chunk<4>(line, c) : device::zero_chunk<1>(line, c);
    }
  }
};

static __global__ void __launch_bounds__(device::kSortThreads)
    count_tokens_kernel(device::SortShape shape, DigitKey key, int32_t* tile_counts, AbsentRows absent) {
  if (static_cast<int>(blockIdx.x) >= shape.tiles) return absent.write(static_cast<int>(blockIdx.x) - shape.tiles);
  device::count_tile(shape, key, tile_counts);
}

/// Positions in the order of their digit, and `keys`, if wanted, their tokens; -1 behind those that count.
static __global__ void __launch_bounds__(device::kSortThreads)
    sort_tokens_kernel(device::SortShape shape, DigitKey key, const int32_t* tile_counts, int32_t* sorted, int32_t* keys,
                       AbsentRows absent) {
  if (static_cast<int>(blockIdx.x) >= shape.tiles) return absent.write(static_cast<int>(blockIdx.x) - shape.tiles);
  __shared__ device::SortedBins bins;
  device::place_bins(shape, tile_counts, bins);
  const auto put = [&](int place, int position) {
    sorted[place] = position;
    if (keys != nullptr) keys[place] = key.token(position);
  };
  if (blockIdx.x == 0)
    for (int i = bins.start[shape.bins] + static_cast<int>(threadIdx.x); i < shape.items; i += device::kSortThreads) put(i, -1);
  device::place_items(shape, key, bins, [&](int i, int place) {
    if (place >= 0) put(place, key.position(i));
  });
}

struct TokenOrder {
  const int32_t *positions, *keys;
};

/// `absent_blocks` of absent rows are written on the way.
inline TokenOrder sort_tokens(const Context& ctx, AbsentRows absent, int64_t absent_blocks,
                              const ops::EmbeddingScratch& scratch) {
  const int64_t tokens = absent.num_tokens;
  auto *tile_counts = device::pointer<int32_t>(scratch.tile_counts), *keys = device::pointer<int32_t>(scratch.keys);
  int32_t *to = device::pointer<int32_t>(scratch.order), *other = to + tokens;
  const int32_t* from = nullptr;
  const auto last = static_cast<uint32_t>(absent.token.vocab - 1);
  const int digits = std::max<int>(1, (std::bit_width(last) + kDigitBits - 1) / kDigitBits), launches = 2 * digits;
  const auto blocks_of_launch = [&](int launch) {  // a share of the absent rows
    absent.first_block = narrow<int32_t>(absent_blocks * launch / launches);
    return narrow<uint32_t>(absent_blocks * (launch + 1) / launches) - static_cast<uint32_t>(absent.first_block);
  };
  for (int digit = 0; digit < digits; ++digit) {
    const int shift = digit * kDigitBits, bits = std::min<int>(kDigitBits, std::bit_width(std::max(1U, last >> shift)));
    const device::SortShape shape(tokens, int64_t{1} << bits, 1);
    const DigitKey key{absent.token, from, shift, (1 << bits) - 1};
    const auto tiles = static_cast<uint32_t>(shape.tiles);
    const uint32_t beside_count = blocks_of_launch(2 * digit);
    count_tokens_kernel<<<tiles + beside_count, device::kSortThreads, 0, stream(ctx)>>>(shape, key, tile_counts, absent);
    CISTRON_CUDA_CHECK(cudaGetLastError());
    const uint32_t beside_sort = blocks_of_launch(2 * digit + 1);
    sort_tokens_kernel<<<tiles + beside_sort, device::kSortThreads, 0, stream(ctx)>>>(
        shape, key, tile_counts, to, digit + 1 == digits ? keys : nullptr, absent);
    CISTRON_CUDA_CHECK(cudaGetLastError());
    from = to;
    std::swap(to, other);
  }
  return {from, keys};
}

}  // namespace cistron::cuda
