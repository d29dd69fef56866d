// out = softmax(scale q k^T) v, a tile of queries of one head a block, with an online softmax (ops/attention.h).
#include "cistron/cuda/attention/flash.h"
#include "cistron/cuda/attention/flash_softmax.cuh"

namespace cistron::cuda::flash {
namespace {

constexpr int kThreads = 128;

/// kM x 16 queries a warp, kColumns keys a step.
template <int kHeadDim>
struct ForwardTile {
  static constexpr int kD = kHeadDim;
  // Of a thread's registers: kM kD / 2 of output sums, kM kColumns / 2 of scores.
  static constexpr int kM = kD <= 128 ? 2 : 1;
  static constexpr int kColumns = kD <= 96 ? 64 : 32;
  static constexpr int kRows = kThreads / 32 * 16 * kM;
  // Queries, and two stages of keys and values: 68 KiB at 128, 99 KiB at 256.
  static constexpr int kQueryBytes = kTileBytes<kD, kRows>;
  static constexpr int kColumnBytes = kTileBytes<kD, kColumns>;
  static constexpr int kBytes = kQueryBytes + 4 * kColumnBytes;
};

template <class Tile>
__global__ void __launch_bounds__(kThreads, 1) forward_kernel(const ForwardProblem<Bf16> p) {
  constexpr int kD = Tile::kD;
  constexpr int kN = Tile::kColumns / 8;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ RowRanges<false, Tile::kRows> ranges;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::kRows;  // the longest first
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / p.heads.group();
  const int dim = p.heads.dim;
  const int tokens = p.sequences.tokens;
  const uint32_t queries = device::shared_address(shared);
  const auto stage = [&](int step) { return queries + Tile::kQueryBytes + step % 2 * 2 * Tile::kColumnBytes; };

  fetch_rows<kD, Tile::kRows, kThreads>(queries, p.in.q.head(head, dim), p.in.q.pitch, first, tokens, dim);
  ranges.find(p.sequences, first);
  const int begin = ranges.begin();
  const int end = ranges.end();
  const auto fetch = [&](int step) {
    const int column = begin + step * Tile::kColumns;
    if (column < end) {
      fetch_rows<kD, Tile::kColumns, kThreads>(stage(step), p.in.k.head(kv_head, dim), p.in.k.pitch, column, tokens, dim);
      fetch_rows<kD, Tile::kColumns, kThreads>(stage(step) + Tile::kColumnBytes, p.in.v.head(kv_head, dim), p.in.v.pitch, column,
                                               tokens, dim);
    }
    device::commit();
  };
  fetch(0);

  const LaneOffsets<kD> lane;
  const int warp_row = device::warp_index() * 16 * Tile::kM;
  const uint32_t rows = queries + static_cast<uint32_t>(warp_row * kPitch<kD> * 2) + lane.left;
  const float scale = p.scale * kLog2E;
  OnlineSoftmax<Tile::kM> softmax;
  float out[Tile::kM][kD / 8][4] = {};
  for (int step = 0; begin + step * Tile::kColumns < end; ++step) {
    const int column = begin + step * Tile::kColumns;
    device::wait<0>();
    __syncthreads();  // this stage is here, and everybody has read the other one
    fetch(step + 1);
    float scores[Tile::kM][kN][4];
    multiply_rows<kD>(scores, rows, stage(step) + lane.along);
    if (!ranges.whole(column, Tile::kColumns)) mask_scores(scores, ranges.row + warp_row, column);
    softmax.take(scores, scale);
    softmax.shrink(out);
    add_product<kD>(out, scores, stage(step) + Tile::kColumnBytes + lane.across);
  }
  device::wait<0>();

  softmax.finish();
  store_lse(softmax, p.scale, p.lse + static_cast<int64_t>(head) * tokens, first + warp_row, tokens);
  float factor[Tile::kM][2];
  softmax.inverse(factor);
  store_rows(out, factor, p.out.head(head, dim), p.out.pitch, first + warp_row, tokens, dim);
}

template <int kD>
void launch_forward(Context& ctx, const ForwardProblem<Bf16>& p) {
  using Tile = ForwardTile<kD>;
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.sequences.tokens, Tile::kRows)), static_cast<unsigned>(p.heads.count));
  launch(ctx, forward_kernel<Tile>, blocks, kThreads, Tile::kBytes, p);
}

}  // namespace

void mma_forward(Context& ctx, const ops::AttentionForward& args) {
  const ForwardProblem<Bf16> p(args);
  if (p.heads.dim <= 32) return launch_forward<32>(ctx, p);
  if (p.heads.dim <= 64) return launch_forward<64>(ctx, p);
  if (p.heads.dim <= 80) return launch_forward<80>(ctx, p);
  if (p.heads.dim <= 128) return launch_forward<128>(ctx, p);
  launch_forward<256>(ctx, p);
}

}  // namespace cistron::cuda::flash
