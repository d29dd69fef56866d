// The two backward kernels of flash_mma_backward.cu on Hopper. Scores and their gradients go from the tensor cores' sums to their
// left operands without leaving registers: rows by keys want p and ds turned, and there they come turned.
#include "cistron/cuda/attention/flash.h"
#include "cistron/cuda/attention/flash_backward.cuh"
#include "cistron/cuda/attention/sm90_flash.cuh"
#include "cistron/cuda/attention/sm90_flash.h"

namespace cistron::cuda::flash::sm90 {
namespace {

template <int kHeadDim, bool kKeys, int kMathGroups, int kTileColumns>
struct BackwardTile {
  static constexpr int kD = kHeadDim;
  static constexpr bool kByKey = kKeys;
  static constexpr int kMathThreads = kMathGroups * device::kWarpgroup;
  static constexpr int kThreads = kMathThreads + device::kWarpgroup;
  static constexpr int kRows = 64 * kMathGroups;
  static constexpr int kMathRegisters = kMathGroups == 2 ? 240 : 160;
  static constexpr int kCopyRegisters = kMathGroups == 2 ? 24 : 32;
  // A thread's registers: kD / 2 of each sum, kColumns / 2 of scores and of dp, kColumns / 4 of both as operands.
  static constexpr int kColumns = kTileColumns;
  static constexpr int kStages = 2;
  // Two operands of rows, and stages of two operands of columns with their lse and delta: 130 KiB at 128 by keys.
  static constexpr uint32_t kRowBytes = kBytesOf<kD, kRows>;
  static constexpr uint32_t kColumnBytes = kBytesOf<kD, kColumns>;
  static constexpr uint32_t kStageBytes = 2 * kColumnBytes;
  static constexpr uint32_t kStagesAt = 2 * kRowBytes;
  static constexpr uint32_t kStatistics = kStagesAt + kStages * kStageBytes;
  static constexpr uint32_t kStatisticsBytes = kByKey ? 2 * kColumns * 4 : 0;
  static constexpr uint32_t kBarriers = kStatistics + kStages * kStatisticsBytes;
  using StageRing = Ring<kStages, kByKey>;  // by key, lanes read lse and delta
  static constexpr uint32_t kRanges = kBarriers + StageRing::kBytes + 8;
  static constexpr int kBytes = kRanges + sizeof(RowRanges<kByKey, kRows>);
  static constexpr int kFillers = 1 + (kByKey ? device::kWarp : 0);  // the copy engine; lanes that write lse and delta
};

struct Problem {
  BackwardProblem<Bf16> p;
  CUtensorMap rows1, rows2, columns1, columns2;
};

template <class Tile>
struct Shared {
  uint32_t base;
  typename Tile::StageRing ring{base + Tile::kBarriers};

  [[nodiscard]] __device__ uint32_t rows_full() const { return base + Tile::kBarriers + Tile::StageRing::kBytes; }
  [[nodiscard]] __device__ uint32_t columns1() const { return base + Tile::kStagesAt + ring.stage * Tile::kStageBytes; }
  [[nodiscard]] __device__ uint32_t columns2() const { return columns1() + Tile::kColumnBytes; }
  [[nodiscard]] __device__ uint32_t statistics() const { return Tile::kStatistics + ring.stage * Tile::kStatisticsBytes; }
  __device__ void init() const {
    ring.init(Tile::kFillers, Tile::kMathThreads / device::kWarp);
    device::barrier_init(rows_full(), 1);
    device::fence_barrier_init();
  }
};

/// Which heads a block works on: rows of its own, columns of one or, by key, of all query heads that share it.
template <bool kByKey>
struct BlockHeads {
  const Heads& heads;
  int own;

  [[nodiscard]] __device__ int count() const { return kByKey ? heads.group() : 1; }
  [[nodiscard]] __device__ int query(int i) const { return kByKey ? own * heads.group() + i : own; }
  [[nodiscard]] __device__ int key() const { return kByKey ? own : own / heads.group(); }
  [[nodiscard]] __device__ int query_column(int i) const { return query(i) * heads.dim; }
  [[nodiscard]] __device__ int key_column() const { return (heads.count + key()) * heads.dim; }
  [[nodiscard]] __device__ int value_column() const { return (heads.count + heads.kv_count + key()) * heads.dim; }
};

/// By one warp. `bytes`: shared memory.
template <class Tile>
__device__ __forceinline__ void feed(const Problem& problem, Shared<Tile>& shared, uint8_t* bytes, int own, int first, int begin,
                                     int end) {
  constexpr int kD = Tile::kD;
  constexpr bool kByKey = Tile::kByKey;
  constexpr int kPerLane = Tile::kColumns / device::kWarp;
  const BackwardProblem<Bf16>& p = problem.p;
  const BlockHeads<kByKey> heads{p.heads, own};
  const int lane = device::lane_index();
  if (lane == 0) {
    device::barrier_expect(shared.rows_full(), 2 * Tile::kRowBytes);
    load_tile<kD, Tile::kRows>(shared.base, &problem.rows1, kByKey ? heads.key_column() : heads.query_column(0), first,
                               shared.rows_full());
    load_tile<kD, Tile::kRows>(shared.base + Tile::kRowBytes, &problem.rows2,
                               kByKey ? heads.value_column() : heads.query_column(0), first, shared.rows_full());
  }
  for (int i = 0; i < heads.count(); ++i) {
    const int64_t statistics = static_cast<int64_t>(heads.query(i)) * p.sequences.tokens;
    for (int column = begin; column < end; column += Tile::kColumns) {
      float lse[kPerLane];
      float delta[kPerLane];
      if constexpr (kByKey) {
#pragma unroll
        for (int j = 0; j < kPerLane; ++j) {
          const int token = column + lane + j * device::kWarp;
          lse[j] = token < p.sequences.tokens ? kLog2E * __ldg(p.lse + statistics + token) : 0.0F;
          delta[j] = token < p.sequences.tokens ? __ldg(p.delta + statistics + token) : 0.0F;
        }
      }
      shared.ring.wait_empty();
      if constexpr (kByKey) {
        float* to = reinterpret_cast<float*>(bytes + shared.statistics());
#pragma unroll
        for (int j = 0; j < kPerLane; ++j) {
          to[lane + j * device::kWarp] = lse[j];
          to[Tile::kColumns + lane + j * device::kWarp] = delta[j];
        }
        device::barrier_arrive(shared.ring.full());
      }
      if (lane == 0) {
        device::barrier_expect(shared.ring.full(), Tile::kStageBytes);
        load_tile<kD, Tile::kColumns>(shared.columns1(), &problem.columns1, kByKey ? heads.query_column(i) : heads.key_column(),
                                      column, shared.ring.full());
        load_tile<kD, Tile::kColumns>(shared.columns2(), &problem.columns2, kByKey ? heads.query_column(i) : heads.value_column(),
                                      column, shared.ring.full());
      }
      __syncwarp();
      shared.ring.advance();
    }
  }
}

/// lse (times log2 e) and delta of a lane's columns.
template <int kN>
struct PerColumn {
  float2 lse[kN], delta[kN];
  __device__ __forceinline__ void load_lse(const float* from) { load(lse, from); }
  __device__ __forceinline__ void load_delta(const float* from) { load(delta, from + 8 * kN); }

 private:
  __device__ __forceinline__ static void load(float2 (&to)[kN], const float* from) {
#pragma unroll
    for (int n = 0; n < kN; ++n) to[n] = *reinterpret_cast<const float2*>(from + n * 8 + device::lane_index() % 4 * 2);
  }
};

template <class Tile>
class Math {
 public:
  static constexpr int kD = Tile::kD;
  static constexpr int kN = Tile::kColumns / 8;
  static constexpr bool kByKey = Tile::kByKey;

  __device__ Math(const BackwardProblem<Bf16>& p, Shared<Tile>& shared, const uint8_t* bytes, int own, int first)
      : p_(p), shared_(shared), bytes_(bytes), own_(own), first_row_(first + warp_row()) {
    if constexpr (!kByKey) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row_ + half * 8 + device::lane_index() / 4;
        const int64_t at = static_cast<int64_t>(own) * p.sequences.tokens + row;
        row_lse_[half] = row < p.sequences.tokens ? kLog2E * p.lse[at] : 0.0F;
        row_delta_[half] = row < p.sequences.tokens ? p.delta[at] : 0.0F;
      }
    }
  }

  template <class Ranges>
  __device__ __forceinline__ void run(const Ranges& ranges) {
    const int begin = ranges.begin();
    const int steps = (ranges.end() - begin + Tile::kColumns - 1) / Tile::kColumns;  // of one head
    const int all_steps = steps * (kByKey ? p_.heads.group() : 1);
    device::barrier_wait(shared_.rows_full(), 0);
    for (int step = 0; step < all_steps; ++step) {
      const int column = begin + step % steps * Tile::kColumns;
      shared_.ring.wait_full();
      queue_scores();
      const float* statistics = reinterpret_cast<const float*>(bytes_ + shared_.statistics());
      device::wgmma_wait<1>();
      device::wgmma_pin(flat(scores_));
      probabilities(statistics, ranges.row + warp_row(), column, ranges.whole(column, Tile::kColumns));
      if constexpr (kByKey) {
        left2_.take(scores_);
        queue_product(sums2_, left2_, shared_.columns2());
        device::wgmma_wait<1>();
      } else {
        device::wgmma_wait<0>();
      }
      device::wgmma_pin(flat(dp_));
      score_gradients(statistics);
      left1_.take(dp_);
      queue_product(sums1_, left1_, shared_.columns1());
      device::wgmma_wait<0>();
      device::wgmma_pin(flat(sums1_));
      left1_.pin();
      if constexpr (kByKey) {
        device::wgmma_pin(flat(sums2_));
        left2_.pin();
      }
      shared_.ring.release();
      shared_.ring.advance();
    }
  }

  __device__ __forceinline__ void store() const {
    const float one[1][2] = {{1.0F, 1.0F}};
    const float scaled[1][2] = {{p_.scale, p_.scale}};
    const auto& grad1 = kByKey ? p_.grad.k : p_.grad.q;
    const int tokens = p_.sequences.tokens;
    store_rows(sums1_, scaled, grad1.head(own_, kD), grad1.pitch, first_row_, tokens, kD);
    if constexpr (kByKey) store_rows(sums2_, one, p_.grad.v.head(own_, kD), p_.grad.v.pitch, first_row_, tokens, kD);
  }

 private:
  __device__ static int warp_row() { return device::warp_index() * 16; }

  /// Scores in one group of products, dp in the next.
  __device__ __forceinline__ void queue_scores() {
    const uint32_t own_rows = shared_.base + device::warp_index() / 4 * 64 * 128;
    device::wgmma_pin(flat(scores_));
    device::wgmma_pin(flat(dp_));
    device::wgmma_begin();
    multiply_rows<kD, Tile::kRows>(scores_, own_rows, shared_.columns1());
    device::wgmma_commit();
    multiply_rows<kD, Tile::kRows>(dp_, own_rows + Tile::kRowBytes, shared_.columns2());
    device::wgmma_commit();
  }

  template <int kSums>
  __device__ __forceinline__ void queue_product(float (&sums)[1][kSums][4], LeftOperand<kN>& left, uint32_t columns) {
    left.pin();
    device::wgmma_pin(flat(sums));
    device::wgmma_begin();
    add_product<kD>(sums, left, columns);
    device::wgmma_commit();
  }

  /// scores -> p, zero where a row does not meet a column.
  __device__ __forceinline__ void probabilities(const float* statistics, const Range* row, int first, bool whole) {
    const float scale = p_.scale * kLog2E;
    const int lane = device::lane_index();
    PerColumn<kN> column;
    if (kByKey) column.load_lse(statistics);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        float& s0 = scores_[0][n][2 * half];
        float& s1 = scores_[0][n][2 * half + 1];
        s0 = exp2_fast(fmaf(s0, scale, -(kByKey ? column.lse[n].x : row_lse_[half])));
        s1 = exp2_fast(fmaf(s1, scale, -(kByKey ? column.lse[n].y : row_lse_[half])));
      }
    if (whole) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Range range = row[half * 8 + lane / 4];
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = first + n * 8 + lane % 4 * 2 + i;
          if (at < range.begin || at >= range.end) scores_[0][n][2 * half + i] = 0;
        }
    }
  }

  /// dp -> ds
  __device__ __forceinline__ void score_gradients(const float* statistics) {
    PerColumn<kN> column;
    if (kByKey) column.load_delta(statistics);
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        dp_[0][n][2 * half] = scores_[0][n][2 * half] * (dp_[0][n][2 * half] - (kByKey ? column.delta[n].x : row_delta_[half]));
        dp_[0][n][2 * half + 1] =
            scores_[0][n][2 * half + 1] * (dp_[0][n][2 * half + 1] - (kByKey ? column.delta[n].y : row_delta_[half]));
      }
  }

  const BackwardProblem<Bf16>& p_;
  Shared<Tile>& shared_;
  const uint8_t* bytes_;
  const int own_, first_row_;
  float row_lse_[2] = {}, row_delta_[2] = {};
  float scores_[1][kN][4], dp_[1][kN][4];
  float sums1_[1][kD / 8][4] = {};
  float sums2_[1][kByKey ? kD / 8 : 1][4] = {};
  LeftOperand<kN> left1_, left2_;
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) backward_kernel(const __grid_constant__ Problem problem) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  // Nothing lies in shared memory ahead of `bytes`: swizzled tiles start at multiples of 1024.
  auto& ranges = *reinterpret_cast<RowRanges<Tile::kByKey, Tile::kRows>*>(bytes + Tile::kRanges);
  Shared<Tile> shared{device::shared_address(bytes)};
  const int tile = static_cast<int>(Tile::kByKey ? blockIdx.x : gridDim.x - 1 - blockIdx.x);  // the longest first
  const int first = tile * Tile::kRows;
  const int own = static_cast<int>(blockIdx.y);
  if (threadIdx.x == 0) shared.init();
  ranges.find(problem.p.sequences, first);  // and all threads meet

  if (device::warp_index() >= Tile::kMathThreads / device::kWarp) {
    device::give_registers<Tile::kCopyRegisters>();
    if (device::warp_index() == Tile::kMathThreads / device::kWarp)
      feed(problem, shared, bytes, own, first, ranges.begin(), ranges.end());
  } else {
    device::take_registers<Tile::kMathRegisters>();
    Math<Tile> math(problem.p, shared, bytes, own, first);
    math.run(ranges);
    math.store();
  }
}

template <class Tile>
void launch_tile(Context& ctx, const ops::AttentionBackward& args) {
  constexpr bool kByKey = Tile::kByKey;
  const Tensor& rows2 = kByKey ? args.qkv : args.dout;
  const Tensor& columns2 = kByKey ? args.dout : args.qkv;
  const Problem problem{.p = BackwardProblem<Bf16>(args),
                        .rows1 = map_of(args.qkv, Tile::kRows),
                        .rows2 = map_of(rows2, Tile::kRows),
                        .columns1 = map_of(args.qkv, Tile::kColumns),
                        .columns2 = map_of(columns2, Tile::kColumns)};
  const dim3 blocks(static_cast<unsigned>(ceil_div(args.qkv.dim(0), Tile::kRows)),
                    static_cast<unsigned>(kByKey ? args.shape.num_kv_heads : args.shape.num_heads));
  launch(ctx, backward_kernel<Tile>, blocks, Tile::kThreads, Tile::kBytes, problem);
}

template <int kD, int kQueries, int kGroups, int kKeys>
void launch_backward(Context& ctx, const ops::AttentionBackward& args) {
  launch_tile<BackwardTile<kD, true, 2, kQueries>>(ctx, args);
  launch_tile<BackwardTile<kD, false, kGroups, kKeys>>(ctx, args);
}

}  // namespace

void backward(Context& ctx, const ops::AttentionBackward& args) {
  if (args.shape.head_dim == 64) return launch_backward<64, 96, 2, 128>(ctx, args);
  if (args.shape.head_dim == 80) return launch_backward<80, 64, 2, 96>(ctx, args);
  launch_backward<128, 64, 2, 96>(ctx, args);
}

}  // namespace cistron::cuda::flash::sm90
