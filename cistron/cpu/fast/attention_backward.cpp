// With p = exp(scale q k - lse), delta = sum over d of dout out (Dao, "FlashAttention-2", 2023):
//   dv = p^T dout,  ds = p (dout v^T - delta),  dk = scale ds^T q,  dq = scale ds k
// One task owns a key/value head of a sequence, with all its query heads, so that dk and dv have one writer and one order.
#include <limits>

#include "cistron/cpu/fast/attention_blocks.h"

namespace cistron::cpu {

namespace {

using namespace attention;  // NOLINT(google-build-using-namespace)

template <class B>
struct Scratch {
  Buffer<B> q, k, v, dout, p, ds;
  Buffer<float> dq, dk, dv, scores, dp;
};

template <class B>
struct QueryBlock {
  const B* q;
  const B* dout;
  float* dq;
  alignas(64) PerQuery lse, delta;
};

template <class T>
void delta_of(const Head<T>& dout, const Head<T>& out, int64_t first, int64_t rows, PerQuery& delta) {
  delta.fill(0.0F);
  for (int64_t r = 0; r < rows; ++r) {
    const T *a = dout.data + (first + r) * dout.ld, *b = out.data + (first + r) * out.ld;
    F16 sum{};
    for_lanes(dout.dim, [&](const Lanes& lanes) { sum += lanes.load(a) * lanes.load(b); });
    delta[static_cast<size_t>(r)] = horizontal_sum(sum);
  }
}

// Of one tile, [key, query].
template <class B>
struct TileScores {
  float *scores, *dp;
  B *p, *ds;
};

// scores: q k; dp: dout v
template <class B>
void score_gradients(const Tile& tile, float scale, const QueryBlock<B>& query, const TileScores<B>& of) {
  for (int64_t q = 0; q < kBlock; q += kLanes) {
    const F16 lse = load(&query.lse[q]), delta = load(&query.delta[q]);
    for (int64_t k = 0; k < tile.keys; ++k) {
      const int64_t i = k * kBlock + q;
      const F16 p = tile.select(k, q, exp(load(of.scores + i) * scale - lse), 0.0F);
      store(of.p + i, p);
      store(of.ds + i, p * (load(of.dp + i) - delta));
    }
  }
  const int64_t end = tile.keys * kBlock, padding = (tile.padded_keys - tile.keys) * kBlock;
  std::fill_n(of.p + end, padding, B(0.0F));
  std::fill_n(of.ds + end, padding, B(0.0F));
}

template <class B>
struct Keys {
  const B *k, *v;
  float *dk, *dv;
};

template <class B>
void backward_tile(const Tile& tile, float scale, int64_t dim, const QueryBlock<B>& query, const Keys<B>& all,
                   const TileScores<B>& of) {
  const int64_t at = tile.first_key * dim, keys = tile.padded_keys;
  inner(all.k + at, query.q, keys, dim, of.scores);
  inner(all.v + at, query.dout, keys, dim, of.dp);
  score_gradients(tile, scale, query, of);
  add_by_key(of.p, query.dout, keys, dim, all.dv + at);
  add_by_key(of.ds, query.q, keys, dim, all.dk + at);
  add_by_query(of.ds, all.k + at, keys, dim, query.dq);
}

template <class T, class B>
class KvHead {
 public:
  KvHead(const ops::AttentionBackward& args, int64_t begin, int64_t length, int64_t kv_head)
      : args_(args), begin_(begin), length_(length), kv_head_(kv_head), padded_(round_up(length, kBlock)) {}

  void run() {
    const int64_t count = padded_ * dim_, group = shape_.num_heads / shape_.num_kv_heads;
    keys_ = {scratch_.k.get(count), scratch_.v.get(count), scratch_.dk.zeros(count), scratch_.dv.zeros(count)};
    pack(column(args_.qkv, key_column(shape_, kv_head_)), 0, length_, padded_, scratch_.k.get(count));
    pack(column(args_.qkv, value_column(shape_, kv_head_)), 0, length_, padded_, scratch_.v.get(count));
    for (int64_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head)
      for (int64_t first = 0; first < length_; first += kBlock) query_block(head, first);
    unpack(keys_.dk, 0, length_, [&](int64_t) { return args_.scale; }, column(args_.dqkv, key_column(shape_, kv_head_)));
    unpack(keys_.dv, 0, length_, [](int64_t) { return 1.0F; }, column(args_.dqkv, value_column(shape_, kv_head_)));
  }

 private:
  Head<T> column(const Tensor& tensor, int64_t at) const { return head_of<T>(tensor, begin_, at, dim_); }

  void query_block(int64_t head, int64_t first) {
    const int64_t rows = std::min(kBlock, length_ - first);
    const QueryBlock<B> query = load_queries(head, first, rows);
    const TileScores<B> scores{scratch_.scores.get(kMostScores), scratch_.dp.get(kMostScores), scratch_.p.get(kMostScores),
                               scratch_.ds.get(kMostScores)};
    for_tiles(first, length_, args_.causal,
              [&](const Tile& tile) { backward_tile(tile, args_.scale, dim_, query, keys_, scores); });
    unpack(query.dq, first, rows, [&](int64_t) { return args_.scale; }, column(args_.dqkv, query_column(shape_, head)));
  }

  // Queries behind the sequence's end get p = exp(0 - inf) = 0.
  QueryBlock<B> load_queries(int64_t head, int64_t first, int64_t rows) {
    const int64_t count = kBlock * dim_, at = query_column(shape_, head);
    B *q = scratch_.q.get(count), *dout = scratch_.dout.get(count);
    pack(column(args_.qkv, at), first, rows, kBlock, q);
    pack(column(args_.dout, at), first, rows, kBlock, dout);
    QueryBlock<B> query{.q = q, .dout = dout, .dq = scratch_.dq.zeros(count)};
    delta_of(column(args_.dout, at), column(args_.out, at), first, rows, query.delta);
    query.lse.fill(std::numeric_limits<float>::infinity());
    std::copy_n(args_.lse.data<float>() + head * args_.qkv.dim(0) + begin_ + first, rows, query.lse.begin());
    return query;
  }

  static thread_local Scratch<B> scratch_;

  const ops::AttentionBackward& args_;
  const ops::AttentionShape& shape_ = args_.shape;
  const int64_t begin_, length_, kv_head_, padded_;
  const int64_t dim_ = shape_.head_dim;
  Keys<B> keys_{};
};

template <class T, class B>
thread_local Scratch<B> KvHead<T, B>::scratch_;

}  // namespace

void attention_backward(Context& ctx, const ops::AttentionBackward& args) {
  const int32_t* ends = args.cu_seqlens.data<int32_t>();
  const int64_t kv_heads = args.shape.num_kv_heads;
  with_types(args.qkv.dtype(), [&](auto type, auto operand) {
    ctx.parallel_for((args.cu_seqlens.dim(0) - 1) * kv_heads, [&](int64_t task) {
      const int64_t s = task / kv_heads;
      if (ends[s] == ends[s + 1]) return;
      KvHead<decltype(type), decltype(operand)>(args, ends[s], ends[s + 1] - ends[s], task % kv_heads).run();
    });
  });
}

}  // namespace cistron::cpu
