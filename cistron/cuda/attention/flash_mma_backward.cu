// With p = exp(scale q k - lse) and ds = p (dout v^T - delta): dv = p^T dout, dk = scale ds^T q, dq = scale ds k.
// One kernel, twice: rows are keys with queries as columns (dk, dv), or queries with keys as columns (dq). Either way
//   scores = rows1 columns1^T, dp = rows2 columns2^T, sums2 += p columns2 (keys only), sums1 += ds columns1
#include "cistron/cuda/attention/flash.h"
#include "cistron/cuda/attention/flash_backward.cuh"

namespace cistron::cuda::flash {
namespace {

template <int kHeadDim, bool kKeys>
struct BackwardTile {
  static constexpr int kD = kHeadDim;
  static constexpr bool kByKey = kKeys;
  static constexpr int kThreads = 256;
  static constexpr int kRows = kThreads / 32 * 16;
  static constexpr int kColumns = kD <= 96 ? 64 : 32;
  // Columns of the gradients that one block sums: dk and dv of 256 would be a thread's 256 registers.
  static constexpr int kSums = kByKey && kD > 128 ? 128 : kD;
  // Two operands of rows, two stages of two operands of columns and their lse and delta: 104 KiB at 128.
  static constexpr int kRowBytes = kTileBytes<kD, kRows>;
  static constexpr int kColumnBytes = kTileBytes<kD, kColumns>;
  static constexpr int kStageBytes = 2 * kColumnBytes + 2 * kColumns * 4;
  static constexpr int kBytes = 2 * kRowBytes + 2 * kStageBytes;
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) backward_kernel(const BackwardProblem<Bf16> p) {
  constexpr int kD = Tile::kD;
  constexpr int kN = Tile::kColumns / 8;
  constexpr int kThreads = Tile::kThreads;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ RowRanges<Tile::kByKey, Tile::kRows> ranges;
  const int tile = static_cast<int>(Tile::kByKey ? blockIdx.x : gridDim.x - 1 - blockIdx.x);  // the longest first
  const int first = tile * Tile::kRows;
  const Operands<Tile::kByKey> in{p, static_cast<int>(blockIdx.y)};
  const int dim = p.heads.dim;
  const int tokens = p.sequences.tokens;
  const uint32_t rows = device::shared_address(shared);
  const auto stage_at = [&](int step) { return 2 * Tile::kRowBytes + step % 2 * Tile::kStageBytes; };

  fetch_rows<kD, Tile::kRows, kThreads>(rows, in.rows1().data, in.rows1().pitch, first, tokens, dim);
  fetch_rows<kD, Tile::kRows, kThreads>(rows + Tile::kRowBytes, in.rows2().data, in.rows2().pitch, first, tokens, dim);
  ranges.find(p.sequences, first);
  const int begin = ranges.begin();
  const int end = ranges.end();
  const int steps = (end - begin + Tile::kColumns - 1) / Tile::kColumns;  // of one head
  const int all_steps = steps * in.column_heads();
  const auto fetch = [&](int step) {
    if (step < all_steps) {
      const int i = step / steps;
      const int column = begin + step % steps * Tile::kColumns;
      const uint32_t to = rows + static_cast<uint32_t>(stage_at(step));
      fetch_rows<kD, Tile::kColumns, kThreads>(to, in.columns1(i).data, in.columns1(i).pitch, column, tokens, dim);
      fetch_rows<kD, Tile::kColumns, kThreads>(to + Tile::kColumnBytes, in.columns2(i).data, in.columns2(i).pitch, column, tokens,
                                               dim);
      if (Tile::kByKey && threadIdx.x < 2 * Tile::kColumns) {
        const int local = static_cast<int>(threadIdx.x) % Tile::kColumns;
        const float* from = (threadIdx.x < Tile::kColumns ? p.lse : p.delta) + static_cast<int64_t>(in.column_head(i)) * tokens;
        const bool inside = column + local < tokens;
        device::copy_4(to + 2 * Tile::kColumnBytes + threadIdx.x * 4, from + (inside ? column + local : 0), inside);
      }
    }
    device::commit();
  };
  fetch(0);

  const LaneOffsets<kD> lane;
  const int warp_row = device::warp_index() * 16;
  const uint32_t own = rows + static_cast<uint32_t>(warp_row * kPitch<kD> * 2) + lane.left;
  const auto sums_at = static_cast<uint32_t>(static_cast<int>(blockIdx.z) * Tile::kSums);  // first column that this block sums
  const float scale = p.scale * kLog2E;
  PerRow per_row{};
  if (!Tile::kByKey)
    for (int half = 0; half < 2; ++half) {
      const int row = first + warp_row + half * 8 + lane.lane / 4;
      const int64_t at = static_cast<int64_t>(in.head) * tokens + row;
      per_row.lse_of[half] = row < tokens ? p.lse[at] : 0.0F;
      per_row.delta_of[half] = row < tokens ? p.delta[at] : 0.0F;
    }
  float sums1[1][Tile::kSums / 8][4] = {};
  float sums2[1][Tile::kByKey ? Tile::kSums / 8 : 1][4] = {};
  for (int step = 0; step < all_steps; ++step) {
    const int column = begin + step % steps * Tile::kColumns;
    const uint32_t columns = rows + static_cast<uint32_t>(stage_at(step));
    device::wait<0>();
    __syncthreads();  // this stage is here, and everybody has read the other one
    fetch(step + 1);
    const PerColumn per_column{reinterpret_cast<const float*>(shared + stage_at(step) + 2 * Tile::kColumnBytes), Tile::kColumns};
    const auto statistics = [&] {
      if constexpr (Tile::kByKey)
        return per_column;
      else
        return per_row;
    }();
    float scores[1][kN][4];
    multiply_rows<kD>(scores, own, columns + lane.along);
    probabilities(scores, statistics, scale, ranges.whole(column, Tile::kColumns), ranges.row + warp_row, column);
    if constexpr (Tile::kByKey) add_product<kD>(sums2, scores, columns + Tile::kColumnBytes + lane.across + sums_at * 2);
    float dp[1][kN][4];
    multiply_rows<kD>(dp, own + Tile::kRowBytes, columns + Tile::kColumnBytes + lane.along);
    score_gradients(dp, scores, statistics);
    add_product<kD>(sums1, dp, columns + lane.across + sums_at * 2);
  }
  device::wait<0>();

  const float one[1][2] = {{1.0F, 1.0F}};
  const float scaled[1][2] = {{p.scale, p.scale}};
  const auto& grad1 = Tile::kByKey ? p.grad.k : p.grad.q;
  const int left = dim - static_cast<int>(sums_at);
  store_rows(sums1, scaled, grad1.head(in.head, dim) + sums_at, grad1.pitch, first + warp_row, tokens, left);
  if constexpr (Tile::kByKey)
    store_rows(sums2, one, p.grad.v.head(in.head, dim) + sums_at, p.grad.v.pitch, first + warp_row, tokens, left);
}

template <class Tile>
void launch_tile(Context& ctx, const BackwardProblem<Bf16>& p) {
  const dim3 blocks(static_cast<unsigned>(ceil_div(p.sequences.tokens, Tile::kRows)),
                    static_cast<unsigned>(Tile::kByKey ? p.heads.kv_count : p.heads.count),
                    static_cast<unsigned>(Tile::kD / Tile::kSums));
  launch(ctx, backward_kernel<Tile>, blocks, Tile::kThreads, Tile::kBytes, p);
}

template <int kD>
void launch_backward(Context& ctx, const BackwardProblem<Bf16>& p) {
  launch_tile<BackwardTile<kD, true>>(ctx, p);
  launch_tile<BackwardTile<kD, false>>(ctx, p);
}

/// What the greediest of the kernels asks for: dk and dv.
int shared_bytes(int64_t dim) {
  if (dim <= 32) return BackwardTile<32, true>::kBytes;
  if (dim <= 64) return BackwardTile<64, true>::kBytes;
  if (dim <= 80) return BackwardTile<80, true>::kBytes;
  if (dim <= 128) return BackwardTile<128, true>::kBytes;
  return BackwardTile<256, true>::kBytes;
}

}  // namespace

bool mma_takes(const Context& ctx, DType dtype, const ops::AttentionShape& shape) {
  constexpr int kStaticBytes = 2048;  // the rows' ranges
  return dtype == DType::kBF16 && shape.head_dim % 8 == 0 &&
         shared_bytes(shape.head_dim) + kStaticBytes <= shared_memory_per_block(ctx);
}

void mma_backward(Context& ctx, const ops::AttentionBackward& args) {
  const BackwardProblem<Bf16> p(args);
  if (p.heads.dim <= 32) return launch_backward<32>(ctx, p);
  if (p.heads.dim <= 64) return launch_backward<64>(ctx, p);
  if (p.heads.dim <= 80) return launch_backward<80>(ctx, p);
  if (p.heads.dim <= 128) return launch_backward<128>(ctx, p);
  launch_backward<256>(ctx, p);
}

}  // namespace cistron::cuda::flash
