// The tokens' positions are sorted by token, in passes of 9 bits. The sorted list is cut into pieces of equal length, and a block
// sums each run of one token within its piece: a run that lies in one piece is a row of dtable; the parts of one that crosses
// pieces go to `partial`, and a second kernel adds them up, piece by piece. So the order of a sum depends on the tokens alone.
#include <algorithm>
#include <bit>

#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/counting_sort.cuh"
#include "cistron/ops/embedding.h"

namespace cistron::cuda {
namespace {

using device::Chunk, device::Floats, device::SortedBins, device::SortShape;

constexpr int kDigitBits = 9;
constexpr int kThreads = 256;
constexpr int kPiece = ops::EmbeddingScratch::kPiece;
constexpr int kRowsAtOnce = 4;

constexpr int32_t kNone = INT32_MAX;  // the token of a position that counts nothing; behind all others in the order

struct TokenKey {
  const int32_t* tokens;
  int32_t vocab;
  __device__ int32_t operator()(int32_t position) const {
    const int32_t token = position < 0 ? -1 : tokens[position];
    return token < 0 || token >= vocab ? kNone : token;
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
    return key == kNone ? -1 : key >> shift & mask;
  }
};

/// Positions in the order of their digit; -1 behind those that count.
__global__ void __launch_bounds__(device::kSortThreads)
    sort_kernel(SortShape shape, DigitKey key, const int32_t* tile_counts, int32_t* sorted) {
  __shared__ SortedBins bins;
  device::place_bins(shape, tile_counts, bins);
  if (blockIdx.x == 0)
    for (int i = bins.start[shape.bins] + static_cast<int>(threadIdx.x); i < shape.items; i += device::kSortThreads)
      sorted[i] = -1;
  device::place_items(shape, key, bins, [&](int i, int place) {
    if (place >= 0) sorted[place] = key.position(i);
  });
}

struct Sums {
  TokenKey token;
  const int32_t* order;
  int32_t tokens;
  int32_t row_chunks;
  int32_t* starts;  // [V + 1]: where a token's run begins in the order
  float* partial;   // [pieces, 2, H]: of the run that comes from the piece before, and of the one that goes on in the next
  float* dtable;
  bool accumulate;
};

/// starts[v] for the tokens v after `before` up to `token`.
__device__ void write_starts(const Sums& s, int32_t before, int32_t token, int32_t position) {
  for (int32_t v = before + 1 + static_cast<int32_t>(threadIdx.x); v <= min(token, s.token.vocab); v += kThreads)
    s.starts[v] = position;
}

template <int kWidth>
__device__ void write_sum(const Sums& s, float* line, bool add, int chunk, Floats<kWidth> sum) {
  if (add) {
    const auto before = device::load_chunk<kWidth>(static_cast<const float*>(line), chunk);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum.at[e] += before.at[e];
  }
  device::store_chunk<kWidth>(line, chunk, sum);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, 4) sum_pieces_kernel(Sums s, const T* dy) {
  __shared__ int32_t rows[kPiece];
  __shared__ int32_t keys[kPiece + 2];  // with the neighbours'
  const int begin = static_cast<int>(blockIdx.x) * kPiece;
  for (int i = static_cast<int>(threadIdx.x); i < kPiece + 2; i += kThreads) {
    const int at = begin + i - 1;
    const int32_t row = at >= 0 && at < s.tokens ? s.order[at] : -1;
    keys[i] = at < 0 ? -1 : s.token(row);
    if (i >= 1 && i <= kPiece) rows[i - 1] = max(row, 0);
  }
  __syncthreads();
  if (blockIdx.y == 0) {
    for (int i = 0; i < kPiece; ++i)
      if (keys[i] != keys[i + 1]) write_starts(s, keys[i], keys[i + 1], begin + i);
    if (begin + kPiece >= s.tokens && keys[kPiece] != kNone) write_starts(s, keys[kPiece], s.token.vocab, s.tokens);
  }
  const int chunk = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (chunk >= s.row_chunks || s.tokens == 0) return;
  const int64_t hidden = int64_t{s.row_chunks} * kWidth;
  Floats<kWidth> sum{};
  bool from_before = keys[0] == keys[1];
  for (int first = 0; first < kPiece; first += kRowsAtOnce) {
    Chunk<T, kWidth> in[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) in[r] = device::load_chunk<kWidth>(dy, int64_t{rows[first + r]} * s.row_chunks + chunk);
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const int i = first + r;
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum.at[e] += device::as_float(in[r].at[e]);
      const bool ends = keys[i + 1] != keys[i + 2];
      if (!ends && i + 1 < kPiece) continue;
      if (keys[i + 1] < s.token.vocab) {
        const bool whole = ends && !from_before;
        float* line =
            whole ? s.dtable + keys[i + 1] * hidden : s.partial + (int64_t{blockIdx.x} * 2 + (from_before ? 0 : 1)) * hidden;
        write_sum(s, line, whole && s.accumulate, chunk, sum);
      }
      sum = {};
      from_before = false;
    }
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) finish_kernel(Sums s) {
  const int token = static_cast<int>(blockIdx.x);
  const int begin = s.starts[token], end = s.starts[token + 1];
  const int first = begin / kPiece, last = (end - 1) / kPiece;
  if (begin < end ? first == last : s.accumulate) return;  // written already, or nothing to add
  const int64_t hidden = int64_t{s.row_chunks} * kWidth;
  for (int chunk = static_cast<int>(threadIdx.x); chunk < s.row_chunks; chunk += kThreads) {
    Floats<kWidth> sum{};
    if (begin < end) {
      sum = device::load_chunk<kWidth>(static_cast<const float*>(s.partial + (int64_t{first} * 2 + 1) * hidden), chunk);
#pragma unroll 8
      for (int piece = first + 1; piece <= last; ++piece) {
        const auto part = device::load_chunk<kWidth>(static_cast<const float*>(s.partial + int64_t{piece} * 2 * hidden), chunk);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) sum.at[e] += part.at[e];
      }
    }
    write_sum(s, s.dtable + token * hidden, s.accumulate, chunk, sum);
  }
}

/// Gives the positions in the order of their tokens.
const int32_t* sort_tokens(const Context& ctx, const TokenKey& token, int64_t tokens, const ops::EmbeddingScratch& scratch) {
  auto* tile_counts = device::pointer<int32_t>(scratch.tile_counts);
  int32_t *to = device::pointer<int32_t>(scratch.order), *other = to + tokens;
  const int32_t* from = nullptr;
  const auto last = static_cast<uint32_t>(token.vocab - 1);
  for (int shift = 0; shift == 0 || last >> shift != 0; shift += kDigitBits) {
    const int bits = std::min<int>(kDigitBits, std::bit_width(std::max(1U, last >> shift)));
    const SortShape shape(tokens, int64_t{1} << bits, 1);
    const DigitKey key{token, from, shift, (1 << bits) - 1};
    device::count_bins(ctx, shape, key, tile_counts);
    sort_kernel<<<static_cast<uint32_t>(shape.tiles), device::kSortThreads, 0, stream(ctx)>>>(shape, key, tile_counts, to);
    CISTRON_CUDA_CHECK(cudaGetLastError());
    from = to;
    std::swap(to, other);
  }
  return from;
}

}  // namespace

void embedding_backward(Context& ctx, const ops::EmbeddingBackward& args) {
  const DeviceGuard guard(ctx);
  const Tensor& table = args.dtable.grad;
  const int64_t tokens = args.dy.dim(0), hidden = args.dy.dim(1);
  if (table.numel() == 0) return;
  Sums sums{.token = {device::pointer<const int32_t>(args.tokens), narrow<int32_t>(table.dim(0))},
            .order = nullptr,
            .tokens = narrow<int32_t>(tokens),
            .row_chunks = 0,
            .starts = device::pointer<int32_t>(args.scratch.starts),
            .partial = device::pointer<float>(args.scratch.partial),
            .dtable = device::pointer<float>(table),
            .accumulate = args.dtable.accumulate};
  sums.order = sort_tokens(ctx, sums.token, tokens, args.scratch);
  device::with_chunks(hidden, {&args.dy, &table}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    sums.row_chunks = narrow<int32_t>(hidden / kWidth);
    const auto pieces = narrow<uint32_t>(args.scratch.partial.dim(0));
    const dim3 grid(pieces, device::blocks_for(sums.row_chunks, kThreads));
    sum_pieces_kernel<T, kWidth><<<grid, kThreads, 0, stream(ctx)>>>(sums, device::pointer<const T>(args.dy));
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
  device::with_chunks(hidden, {&table}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    sums.row_chunks = narrow<int32_t>(hidden / kWidth);
    finish_kernel<kWidth><<<device::blocks_for(table.dim(0), 1), kThreads, 0, stream(ctx)>>>(sums);
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace cistron::cuda
