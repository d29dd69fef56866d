// The tokens' positions are sorted by token. The sorted list is cut into pieces of equal length, and a block sums each run of one
// token within its piece: a run that lies in one piece is a row of dtable; the parts of one that crosses pieces go to `partial`,
// and a second kernel adds them up, piece by piece. So the order of a sum depends on the tokens alone.
#include "cistron/cuda/embedding/token_order.cuh"

namespace cistron::cuda {
namespace {

using device::Chunk, device::Floats;

constexpr int kThreads = 256;
constexpr int kPiece = ops::EmbeddingScratch::kPiece;
constexpr int kRowsAtOnce = 4;

struct Sums {
  TokenOrder order;
  int32_t tokens, vocab;
  int32_t row_chunks;
  float* partial;  // [pieces, 2, H]: of the run that comes from the piece before, and of the one that goes on in the next
  float* dtable;
  bool accumulate;
};

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
    keys[i] = at < 0 ? -1 : at < s.tokens ? s.order.keys[at] : kNoToken;
    if (i >= 1 && i <= kPiece) rows[i - 1] = at < s.tokens ? max(s.order.positions[at], 0) : 0;
  }
  __syncthreads();
  const int chunk = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (chunk >= s.row_chunks) return;
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
      if (keys[i + 1] < s.vocab) {
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

/// For the run, if there is one, that begins in this block's piece and goes on in the next.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) finish_kernel(Sums s) {
  const int piece = static_cast<int>(blockIdx.x), pieces = static_cast<int>(gridDim.x) + 1;
  const int32_t* keys = s.order.keys;
  const int32_t token = keys[(piece + 1) * kPiece];
  if (token >= s.vocab || keys[(piece + 1) * kPiece - 1] != token) return;
  if (piece > 0 && keys[piece * kPiece - 1] == token) return;
  int last = piece + 1, more = kThreads;
  for (int first = piece + 2; more == kThreads; first += kThreads) {
    const int next = first + static_cast<int>(threadIdx.x);
    more = __syncthreads_count(next < pieces && keys[next * kPiece] == token);
    last += more;
  }
  const int chunk = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (chunk >= s.row_chunks) return;
  const int64_t hidden = int64_t{s.row_chunks} * kWidth;
  auto sum = device::load_chunk<kWidth>(static_cast<const float*>(s.partial + (int64_t{piece} * 2 + 1) * hidden), chunk);
#pragma unroll 8
  for (int p = piece + 1; p <= last; ++p) {
    const auto part = device::load_chunk<kWidth>(static_cast<const float*>(s.partial + int64_t{p} * 2 * hidden), chunk);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum.at[e] += part.at[e];
  }
  write_sum(s, s.dtable + token * hidden, s.accumulate, chunk, sum);
}

}  // namespace

void embedding_backward(Context& ctx, const ops::EmbeddingBackward& args) {
  const DeviceGuard guard(ctx);
  const Tensor& table = args.dtable.grad;
  const int64_t tokens = args.dy.dim(0), hidden = args.dy.dim(1);
  if (table.numel() == 0) return;
  AbsentRows absent{.token = {device::pointer<const int32_t>(args.tokens), narrow<int32_t>(table.dim(0))},
                    .num_tokens = narrow<int32_t>(tokens),
                    .rows = device::pointer<float>(table),
                    .width = hidden,
                    .wide = device::fits_chunks(table, hidden, 4),
                    .first_block = 0};
  const int64_t absent_blocks = args.dtable.accumulate ? 0 : ceil_div(table.dim(0), AbsentRows::kRows);
  Sums sums{.order = sort_tokens(ctx, absent, absent_blocks, args.scratch),
            .tokens = absent.num_tokens,
            .vocab = absent.token.vocab,
            .row_chunks = 0,
            .partial = device::pointer<float>(args.scratch.partial),
            .dtable = absent.rows,
            .accumulate = args.dtable.accumulate};
  if (tokens == 0) return;
  const auto pieces = narrow<uint32_t>(args.scratch.partial.dim(0));
  device::with_chunks(hidden, {&args.dy, &table}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    sums.row_chunks = narrow<int32_t>(hidden / kWidth);
    const dim3 grid(pieces, device::blocks_for(sums.row_chunks, kThreads));
    sum_pieces_kernel<T, kWidth><<<grid, kThreads, 0, stream(ctx)>>>(sums, device::pointer<const T>(args.dy));
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
  if (pieces == 1) return;
  device::with_chunks(hidden, {&table}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    sums.row_chunks = narrow<int32_t>(hidden / kWidth);
    const dim3 grid(pieces - 1, device::blocks_for(sums.row_chunks, kThreads));
    finish_kernel<kWidth><<<grid, kThreads, 0, stream(ctx)>>>(sums);
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace cistron::cuda
