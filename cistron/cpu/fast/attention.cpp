#include "cistron/ops/attention.h"

#include <cmath>
#include <limits>

#include "cistron/cpu/fast/attention_blocks.h"

namespace cistron::cpu {

namespace {

using namespace attention;  // NOLINT(google-build-using-namespace)

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Keys [first, first + count) that sixteen queries from `query` on meet at once.
struct Tile {
  int64_t query, first, count;
};

// Of the softmax so far: the largest score of each query, and the sum of exp(score - largest).
struct Running {
  F16 max = splat(-kInfinity), sum{};
};

// p = exp(scale x score - new largest) as words[key / per word][query]. Gives what everything before must be multiplied by.
template <class B>
F16 online_softmax(const Tile& tile, const Mask& mask, float scale, const float* scores, Running& running, Word<B>* p) {
  const auto score = [&](int64_t k) { return load(scores + k * kLanes) * scale; };
  F16 max = running.max, sum{};
  for (int64_t k = 0; k < tile.count; ++k) {
    const F16 s = mask.select(tile.first + k, tile.query, score(k), -kInfinity);
    max = s > max ? s : max;
  }
  const auto exponential = [&](int64_t k) {
    if (k >= tile.count) return F16{};
    const F16 e = mask.select(tile.first + k, tile.query, exp(score(k) - max), 0.0F);
    sum += e;
    return e;
  };
  for (int64_t k = 0; k < whole_panels(tile.count); k += kPerWord<B>, p += kLanes) {
    if constexpr (kPerWord<B> == 1) {
      store(p, exponential(k));
    } else {
      const F16 even = exponential(k), odd = exponential(k + 1);
      const U16 both = pairs_of(even, odd);
      std::memcpy(p, &both, sizeof(both));
    }
  }
  const F16 shrink = exp(running.max - max);
  running = {max, running.sum * shrink + sum};
  return shrink;
}

template <class B>
struct Scratch {
  Buffer<Word<B>> q, k, v, p;
  Buffer<float> scores, out;
};

// A head of a sequence. Sixteen queries at a time meet all their keys.
template <class T, class B>
class QueryHead {
 public:
  QueryHead(const ops::AttentionForward& args, int64_t begin, int64_t length, int64_t head)
      : args_(args),
        mask_{args.causal, length},
        target_(column<T>(args.out, begin, query_column(args.shape, head))),
        queries_(column<T>(args.qkv, begin, query_column(args.shape, head))),
        lse_(args.lse.data<float>() + head * args.qkv.dim(0) + begin) {
    const int64_t kv_head = head / (args.shape.num_heads / args.shape.num_kv_heads);
    k_ = scratch_.k.get(whole_panels(length) / kLanes * k_block_);
    v_ = scratch_.v.get(width_ / kLanes * v_block_);
    pack_row_tiles<B>(column<T>(args.qkv, begin, key_column(args.shape, kv_head)), 0, length, k_);
    pack_column_tiles<B>(column<T>(args.qkv, begin, value_column(args.shape, kv_head)), length, v_);
  }

  void run() {
    [[maybe_unused]] const TileScope<B> tiles;
    for (int64_t first = 0; first < mask_.length; first += kLanes) attend(first);
  }

 private:
  template <class U>
  Head<U> column(const Tensor& tensor, int64_t token, int64_t at) const {
    return head_of<U>(tensor, token, at, args_.shape.head_dim);
  }

  // Sixteen queries; their sums out[column][query].
  void attend(int64_t first) {
    const int64_t rows = std::min(kLanes, mask_.length - first), end = mask_.end(first);
    Word<B>* q = scratch_.q.get(kLanes * words_);
    pack_panels<B>(queries_, first, rows, q);
    float* out = scratch_.out.zeros(kLanes * width_);
    Running running;
    for (int64_t key = 0; key < end; key += kMostKeys)
      attend({first, key, std::min({kMostKeys, end - key, mask_.length - key})}, q, running, out);
    unpack_columns(out, first, rows, 1.0F / running.sum, target_);
    for (int64_t r = 0; r < rows; ++r) lse_[first + r] = running.max[r] + std::log(running.sum[r]);
  }

  void attend(const Tile& tile, const Word<B>* q, Running& running, float* out) {
    const int64_t keys = whole_panels(tile.count);
    float* scores = scratch_.scores.get(kMostKeys * kLanes);
    Word<B>* p = scratch_.p.get(kMostKeys * kLanes);
    multiply<false>(Blocks<Word<B>>{k_ + tile.first / kLanes * k_block_, k_block_, keys / kLanes}, {q}, words_, scores, kLanes);
    const F16 shrink = online_softmax<B>(tile, mask_, args_.scale, scores, running, p);
    for (int64_t d = 0; tile.first > 0 && d < width_; ++d) store(out + d * kLanes, load(out + d * kLanes) * shrink);
    multiply<true>(Blocks<Word<B>>{v_ + tile.first * kLanes / kPerWord<B>, v_block_, width_ / kLanes}, {p}, keys / kPerWord<B>,
                   out, kLanes);
  }

  static thread_local Scratch<B> scratch_;

  const ops::AttentionForward& args_;
  const Mask mask_;
  const int64_t width_ = whole_panels(args_.shape.head_dim), words_ = width_ / kPerWord<B>;
  const int64_t k_block_ = block_of_tiles<B>(args_.shape.head_dim), v_block_ = block_of_tiles<B>(mask_.length);
  const Head<T> target_, queries_;
  float* lse_;
  Word<B>*k_, *v_;
};

template <class T, class B>
thread_local Scratch<B> QueryHead<T, B>::scratch_;

}  // namespace

void attention_forward(Context& ctx, const ops::AttentionForward& args) {
  const int32_t* ends = args.cu_seqlens.data<int32_t>();
  const int64_t heads = args.shape.num_heads;
  with_types(args.qkv.dtype(), [&](auto type, auto operand) {
    ctx.parallel_for((args.cu_seqlens.dim(0) - 1) * heads, [&](int64_t task) {
      const int64_t s = task / heads;
      if (ends[s] == ends[s + 1]) return;
      QueryHead<decltype(type), decltype(operand)>(args, ends[s], ends[s + 1] - ends[s], task % heads).run();
    });
  });
}

}  // namespace cistron::cpu
