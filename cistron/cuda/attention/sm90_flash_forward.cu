// out = softmax(scale q k^T) v on Hopper: a tile of queries of one head a block. While the tensor cores add one step's values,
// its warpgroup takes the softmax of the next step's scores.
#include "cistron/cuda/attention/flash_softmax.cuh"
#include "cistron/cuda/attention/sm90_flash.cuh"
#include "cistron/cuda/attention/sm90_flash.h"

namespace cistron::cuda::flash::sm90 {
namespace {

template <int kHeadDim, int kMathGroups, int kKeyColumns>
struct ForwardTile {
  static constexpr int kD = kHeadDim;
  static constexpr int kGroups = kMathGroups;
  static constexpr int kMathThreads = kGroups * device::kWarpgroup;
  static constexpr int kThreads = kMathThreads + device::kWarpgroup;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kColumns = kKeyColumns;
  static constexpr int kStages = 2;
  // A thread's: kD / 2 of output sums, kColumns / 2 of scores, kColumns / 4 of probabilities.
  static constexpr int kMathRegisters = kGroups == 2 ? 240 : 160;
  static constexpr int kCopyRegisters = kGroups == 2 ? 24 : 32;
  // 161 KiB at 128, 73 at 64.
  static constexpr uint32_t kRowBytes = kBytesOf<kD, kRows>;
  static constexpr uint32_t kColumnBytes = kBytesOf<kD, kColumns>;
  static constexpr uint32_t kKeys = kRowBytes;
  static constexpr uint32_t kValues = kKeys + kStages * kColumnBytes;
  static constexpr uint32_t kBarriers = kValues + kStages * kColumnBytes;
  static constexpr uint32_t kRanges = kBarriers + 2 * Ring<kStages>::kBytes + 8;
  static constexpr int kBytes = kRanges + sizeof(RowRanges<false, kRows>);
};

struct Problem {
  ForwardProblem<Bf16> p;
  CUtensorMap rows, columns;  // of qkv
};

/// The parts of shared memory.
template <class Tile>
struct Shared {
  uint32_t base;
  Ring<Tile::kStages> keys{base + Tile::kBarriers};
  Ring<Tile::kStages> values{base + Tile::kBarriers + Ring<Tile::kStages>::kBytes};

  [[nodiscard]] __device__ uint32_t queries_full() const { return base + Tile::kBarriers + 2 * Ring<Tile::kStages>::kBytes; }
  [[nodiscard]] __device__ uint32_t key_tile() const { return base + Tile::kKeys + keys.stage * Tile::kColumnBytes; }
  [[nodiscard]] __device__ uint32_t value_tile() const { return base + Tile::kValues + values.stage * Tile::kColumnBytes; }
  __device__ void init() const {
    keys.init(1, Tile::kMathThreads / device::kWarp);
    values.init(1, Tile::kMathThreads / device::kWarp);
    device::barrier_init(queries_full(), 1);
    device::fence_barrier_init();
  }
};

/// By one thread.
template <class Tile>
__device__ __forceinline__ void feed(const Problem& problem, Shared<Tile>& shared, int head, int first, int begin, int end) {
  const Heads& heads = problem.p.heads;
  const int kv_head = head / heads.group();
  device::barrier_expect(shared.queries_full(), Tile::kRowBytes);
  load_tile<Tile::kD, Tile::kRows>(shared.base, &problem.rows, head * heads.dim, first, shared.queries_full());
  for (int column = begin; column < end; column += Tile::kColumns) {
    shared.keys.wait_empty();
    device::barrier_expect(shared.keys.full(), Tile::kColumnBytes);
    load_tile<Tile::kD, Tile::kColumns>(shared.key_tile(), &problem.columns, (heads.count + kv_head) * heads.dim, column,
                                        shared.keys.full());
    shared.keys.advance();
    shared.values.wait_empty();
    device::barrier_expect(shared.values.full(), Tile::kColumnBytes);
    load_tile<Tile::kD, Tile::kColumns>(shared.value_tile(), &problem.columns,
                                        (heads.count + heads.kv_count + kv_head) * heads.dim, column, shared.values.full());
    shared.values.advance();
  }
}

template <class Tile, class Ranges>
__device__ __forceinline__ void attend(const ForwardProblem<Bf16>& p, Shared<Tile>& shared, const Ranges& ranges, int head,
                                       int first) {
  constexpr int kD = Tile::kD;
  constexpr int kN = Tile::kColumns / 8;
  const int warp_row = device::warp_index() * 16;
  const uint32_t queries = shared.base + device::warp_index() / 4 * 64 * 128;
  const float scale = p.scale * kLog2E;
  const int begin = ranges.begin();
  const int end = ranges.end();
  const int steps = (end - begin + Tile::kColumns - 1) / Tile::kColumns;
  OnlineSoftmax<1> softmax;
  float out[1][kD / 8][4] = {};
  float scores[1][kN][4];
  LeftOperand<kN> probabilities;
  const auto queue_scores = [&] {
    shared.keys.wait_full();
    device::wgmma_pin(flat(scores));
    device::wgmma_begin();
    multiply_rows<kD, Tile::kRows>(scores, queries, shared.key_tile());
    device::wgmma_commit();
  };
  const auto take_scores = [&](int step) {
    device::wgmma_pin(flat(scores));
    shared.keys.release();
    shared.keys.advance();
    const int column = begin + step * Tile::kColumns;
    if (!ranges.whole(column, Tile::kColumns)) mask_scores(scores, ranges.row + warp_row, column);
    softmax.take(scores, scale);
  };

  const auto queue_values = [&] {
    shared.values.wait_full();
    probabilities.pin();
    device::wgmma_pin(flat(out));
    device::wgmma_begin();
    add_product<kD>(out, probabilities, shared.value_tile());
    device::wgmma_commit();
  };
  const auto finish_values = [&] {
    device::wgmma_wait<0>();
    device::wgmma_pin(flat(out));
    probabilities.pin();
    shared.values.release();
    shared.values.advance();
  };

  device::barrier_wait(shared.queries_full(), 0);
  if (steps > 0) {
    queue_scores();
    device::wgmma_wait<0>();
    take_scores(0);
    probabilities.take(scores);
    for (int step = 1; step < steps; ++step) {
      queue_scores();
      queue_values();
      device::wgmma_wait<1>();
      take_scores(step);
      finish_values();
      softmax.shrink(out);
      probabilities.take(scores);
    }
    queue_values();
    finish_values();
  }

  const int tokens = p.sequences.tokens;
  softmax.finish();
  store_lse(softmax, p.scale, p.lse + static_cast<int64_t>(head) * tokens, first + warp_row, tokens);
  float factor[1][2];
  softmax.inverse(factor);
  store_rows(out, factor, p.out.head(head, kD), p.out.pitch, first + warp_row, tokens, kD);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) forward_kernel(const __grid_constant__ Problem problem) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  // Nothing lies in shared memory ahead of `bytes`: swizzled tiles start at multiples of 1024.
  auto& ranges = *reinterpret_cast<RowRanges<false, Tile::kRows>*>(bytes + Tile::kRanges);
  Shared<Tile> shared{device::shared_address(bytes)};
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tile::kRows;  // the longest first
  const int head = static_cast<int>(blockIdx.y);
  if (threadIdx.x == 0) shared.init();
  ranges.find(problem.p.sequences, first);  // and all threads meet

  if (device::warp_index() >= Tile::kMathThreads / device::kWarp) {
    device::give_registers<Tile::kCopyRegisters>();
    if (threadIdx.x == Tile::kMathThreads) feed(problem, shared, head, first, ranges.begin(), ranges.end());
  } else {
    device::take_registers<Tile::kMathRegisters>();
    attend(problem.p, shared, ranges, head, first);
  }
}

template <int kD, int kGroups, int kColumns>
void launch_forward(Context& ctx, const ops::AttentionForward& args) {
  using Tile = ForwardTile<kD, kGroups, kColumns>;
  const Problem problem{
      .p = ForwardProblem<Bf16>(args), .rows = map_of(args.qkv, Tile::kRows), .columns = map_of(args.qkv, Tile::kColumns)};
  const dim3 blocks(static_cast<unsigned>(ceil_div(args.qkv.dim(0), Tile::kRows)), static_cast<unsigned>(args.shape.num_heads));
  launch(ctx, forward_kernel<Tile>, blocks, Tile::kThreads, Tile::kBytes, problem);
}

}  // namespace

bool takes(DType dtype, const ops::AttentionShape& shape) {
  const int64_t dim = shape.head_dim;
  return dtype == DType::kBF16 && (dim == 64 || dim == 80 || dim == 128);
}

void forward(Context& ctx, const ops::AttentionForward& args) {
  if (args.shape.head_dim == 64) return launch_forward<64, 3, 96>(ctx, args);
  if (args.shape.head_dim == 80) return launch_forward<80, 2, 128>(ctx, args);
  launch_forward<128, 2, 128>(ctx, args);
}

}  // namespace cistron::cuda::flash::sm90
