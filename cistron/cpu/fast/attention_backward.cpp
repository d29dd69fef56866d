// With p = exp(scale q k - lse), delta = sum over d of dout out (Dao, "FlashAttention-2", 2023):
//   dv = p^T dout,  ds = p (dout v^T - delta),  dk = scale ds^T q,  dq = scale ds k
// One task owns a key/value head of a sequence, with all its query heads, so that dk and dv have one writer and one order.
#include <limits>

#include "cistron/cpu/fast/attention_blocks.h"

namespace cistron::cpu {

namespace {

using namespace attention;  // NOLINT(google-build-using-namespace)

constexpr int64_t kBlock = 64;  // queries at once: dk's and dv's sums are that long before they meet memory
using PerQuery = std::array<float, kBlock>;

template <class B>
struct Scratch {
  // Named by what they are contracted over: columns or rows. Of keys and values tiles, of queries panels.
  Buffer<Word<B>> q_columns, q_rows, k_columns, k_rows, v_columns, dout_columns, dout_rows, p, ds, ds_by_key;
  Buffer<float> dq, dk, dv;
};

template <class B>
struct QueryBlock {
  int64_t first;
  const Word<B>*q_columns, *q_rows, *dout_columns, *dout_rows;
  alignas(64) PerQuery lse, delta;
};

template <class T>
void delta_of(const Head<T>& dout, const Head<T>& out, int64_t first, int64_t rows, PerQuery& delta) {
  delta.fill(0.0F);
  for (int64_t r = 0; r < rows; ++r) {
    const T *a = dout.row(first + r), *b = out.row(first + r);
    F16 sum{};
    for_lanes(dout.dim, [&](const Lanes& lanes) { sum += lanes.load(a) * lanes.load(b); });
    delta[static_cast<size_t>(r)] = horizontal_sum(sum);
  }
}

// Sixteen keys by a block of queries: tiles of keys, contracted over queries, and panels[query / 16][key / per word][16].
template <class B>
struct TileWords {
  static constexpr int64_t kPanel = kMostKeys / kPerWord<B>;
  Word<B>*p, *ds, *ds_by_key;

  static B* place(Word<B>* tiles, int64_t key, int64_t query) {
    return reinterpret_cast<B*>(tiles + query / kTileDepth<B> * kTile + key * kTileWords) + query % kTileDepth<B>;
  }
  void store_rows(int64_t key, int64_t query, F16 p_row, F16 ds_row) const {
    store_word(place(p, key, query), p_row);
    store_word(place(ds, key, query), ds_row);
  }
  void store_by_key(int64_t key, int64_t query, F16 even, F16 odd) const {
    const U16 both = pairs_of(even, odd);
    std::memcpy(ds_by_key + query * kPanel + key / 2 * kLanes, &both, sizeof(both));
  }
};

template <class T, class B>
class KvHead {
 public:
  KvHead(const ops::AttentionBackward& args, int64_t begin, int64_t length, int64_t kv_head)
      : args_(args), mask_{args.causal, length}, begin_(begin), kv_head_(kv_head) {}

  void run() {
    [[maybe_unused]] const TileScope<B> tiles;
    const int64_t length = mask_.length, count = whole_panels(length) / kLanes * block_;
    const int64_t group = shape_.num_heads / shape_.num_kv_heads;
    const auto keys = column(args_.qkv, key_column(shape_, kv_head_)), values = column(args_.qkv, value_column(shape_, kv_head_));
    pack_row_tiles<B>(keys, 0, length, k_columns_ = scratch_.k_columns.get(count));
    pack_column_tiles<B>(keys, length, k_rows_ = scratch_.k_rows.get(width_ / kLanes * block_of_tiles<B>(length)));
    pack_row_tiles<B>(values, 0, length, v_columns_ = scratch_.v_columns.get(count));
    dk_ = scratch_.dk.zeros(whole_panels(length) * width_);
    dv_ = scratch_.dv.zeros(whole_panels(length) * width_);
    for (int64_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head)
      for (int64_t first = 0; first < length; first += kBlock) query_block(head, first);
    unpack(dk_, 0, length, args_.scale, column(args_.dqkv, key_column(shape_, kv_head_)));
    unpack(dv_, 0, length, 1.0F, column(args_.dqkv, value_column(shape_, kv_head_)));
  }

 private:
  Head<T> column(const Tensor& tensor, int64_t at) const { return head_of<T>(tensor, begin_, at, shape_.head_dim); }

  void query_block(int64_t head, int64_t first) {
    const int64_t rows = std::min(kBlock, mask_.length - first);
    const QueryBlock<B> query = load_queries(head, first, rows);
    float* dq = scratch_.dq.zeros(kBlock * width_);
    const int64_t end = std::min(mask_.end(first + kBlock - kLanes), whole_panels(mask_.length));
    for (int64_t key = 0; key < end; key += kMostKeys) {
      const int64_t stop = std::min(end, key + kMostKeys);
      for (int64_t k = key; k < stop; k += kLanes) panel(query, k, (k - key) / kPerWord<B> * kLanes);
      add_dq(query, key, stop, dq);
    }
    for (int64_t q = 0; q < rows; q += kLanes)
      unpack_columns(dq + q * width_, first + q, std::min(kLanes, rows - q), splat(args_.scale),
                     column(args_.dqkv, query_column(shape_, head)));
  }

  // Sixteen keys from `key` on, and the block's queries that see any of them.
  void panel(const QueryBlock<B>& query, int64_t key, int64_t at) {
    const int64_t from = mask_.causal ? std::max<int64_t>(key - query.first, 0) : 0, begin = from / kTileDepth<B> * kTileDepth<B>;
    const TileWords<B> words{scratch_.p.get(kLanes * kBlock), scratch_.ds.get(kLanes * kBlock),
                             scratch_.ds_by_key.get(kMostKeys * kBlock) + at};
    alignas(64) float scores[kLanes * kBlock], dp[kLanes * kBlock];
    const int64_t row = key / kLanes * block_, panel = kLanes * words_, panels = (kBlock - from) / kLanes;
    multiply<false>(Blocks<Word<B>>{k_columns_ + row}, {query.q_columns + from * words_, panel, panels}, words_, scores + from,
                    kBlock);
    multiply<false>(Blocks<Word<B>>{v_columns_ + row}, {query.dout_columns + from * words_, panel, panels}, words_, dp + from,
                    kBlock);
    for (int64_t q = begin; q < from; q += kLanes)  // in a tile with queries that see the keys
      for (int64_t k = 0; k < kLanes; ++k) words.store_rows(k, q, F16{}, F16{});
    for (int64_t q = from; q < kBlock; q += kLanes) score_gradients(query, key, q, scores + q, dp + q, words);
    add_dk_and_dv(query, key, begin, words);
  }

  void add_dk_and_dv(const QueryBlock<B>& query, int64_t key, int64_t begin, const TileWords<B>& words) const {
    const int64_t depth = (kBlock - begin) / kPerWord<B>, at = begin / kPerWord<B> * kLanes;
    const int64_t panel = kLanes * kBlock / kPerWord<B>, panels = width_ / kLanes;
    multiply<true>(Blocks<Word<B>>{words.p + at}, {query.dout_rows + at, panel, panels}, depth, dv_ + key * width_, width_);
    multiply<true>(Blocks<Word<B>>{words.ds + at}, {query.q_rows + at, panel, panels}, depth, dk_ + key * width_, width_);
  }

  // Of sixteen keys and sixteen queries. Keys behind the sequence's end have no weight.
  void score_gradients(const QueryBlock<B>& query, int64_t key, int64_t q, const float* scores, const float* dp,
                       const TileWords<B>& words) const {
    const F16 lse = load(&query.lse[static_cast<size_t>(q)]), delta = load(&query.delta[static_cast<size_t>(q)]);
    F16 even{};
    for (int64_t k = 0; k < kLanes; ++k) {
      const F16 e = exp(load(scores + k * kBlock) * args_.scale - lse);
      const F16 p = key + k < mask_.length ? mask_.select(key + k, query.first + q, e, 0.0F) : F16{};
      const F16 ds = p * (load(dp + k * kBlock) - delta);
      words.store_rows(k, q, p, ds);
      if (kPerWord<B> == 2 && k % 2 == 1) words.store_by_key(k, q, even, ds);
      even = ds;
    }
    if constexpr (kPerWord<B> == 1)
      for (int64_t k = 0; k < kLanes; ++k)
        store(words.ds_by_key + q * words.kPanel + k * kLanes, load(words.place(words.ds, k, q)));
  }

  // dq[query / 16][column][16]
  void add_dq(const QueryBlock<B>& query, int64_t begin, int64_t end, float* dq) const {
    const Word<B>* ds = scratch_.ds_by_key.get(kMostKeys * kBlock);
    for (int64_t q = 0; q < kBlock; q += kLanes) {
      const int64_t keys = std::min(end, mask_.end(query.first + q)) - begin;
      if (keys <= 0) continue;
      multiply<true>(Blocks<Word<B>>{k_rows_ + begin * kLanes / kPerWord<B>, block_of_tiles<B>(mask_.length), width_ / kLanes},
                     {ds + q * TileWords<B>::kPanel}, keys / kPerWord<B>, dq + q * width_, kLanes);
    }
  }

  // Queries behind the sequence's end get p = exp(0 - inf) = 0.
  QueryBlock<B> load_queries(int64_t head, int64_t first, int64_t rows) {
    const int64_t at = query_column(shape_, head), count = kBlock * words_;
    QueryBlock<B> query{.first = first,
                        .q_columns = scratch_.q_columns.zeros(count),
                        .q_rows = scratch_.q_rows.get(count),
                        .dout_columns = scratch_.dout_columns.zeros(count),
                        .dout_rows = scratch_.dout_rows.get(count),
                        .lse = {},
                        .delta = {}};
    const auto q = column(args_.qkv, at), dout = column(args_.dout, at);
    pack_panels<B>(q, first, rows, scratch_.q_columns.get(count));
    pack_rows<B>(q, first, rows, kBlock, scratch_.q_rows.get(count));
    pack_panels<B>(dout, first, rows, scratch_.dout_columns.get(count));
    pack_rows<B>(dout, first, rows, kBlock, scratch_.dout_rows.get(count));
    delta_of(dout, column(args_.out, at), first, rows, query.delta);
    query.lse.fill(std::numeric_limits<float>::infinity());
    std::copy_n(args_.lse.data<float>() + head * args_.qkv.dim(0) + begin_ + first, rows, query.lse.begin());
    return query;
  }

  static thread_local Scratch<B> scratch_;

  const ops::AttentionBackward& args_;
  const ops::AttentionShape& shape_ = args_.shape;
  const Mask mask_;
  const int64_t begin_, kv_head_;
  const int64_t width_ = whole_panels(shape_.head_dim), words_ = width_ / kPerWord<B>;
  const int64_t block_ = block_of_tiles<B>(shape_.head_dim);
  Word<B>*k_columns_ = nullptr, *k_rows_ = nullptr, *v_columns_ = nullptr;
  float *dk_ = nullptr, *dv_ = nullptr;
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
