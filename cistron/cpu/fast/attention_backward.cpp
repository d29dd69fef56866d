// With p = exp(scale q k - lse), delta = sum over d of dout out (Dao, "FlashAttention-2", 2023):
//   dv = p^T dout,  ds = p (dout v^T - delta),  dk = scale ds^T q,  dq = scale ds k
// One task owns a key/value head of a sequence, with all its query heads, so that dk and dv have one writer and one order.
#include <limits>

#include "cistron/cpu/fast/attention_blocks.h"
#include "cistron/cpu/fast/parallel.h"

namespace cistron::cpu {

namespace {

using namespace attention;  // NOLINT(google-build-using-namespace)

struct Scratch {
  Buffer q, k, v, dq, dk, dv, dout, out;
};

struct QueryBlock {
  const float* q;  // times scale
  const float* dout;
  float* dq;
  alignas(64) PerQuery lse, delta;
};

void delta_of(const float* dout, const float* out, int64_t dim, PerQuery& delta) {
  for (int64_t r = 0; r < kBlock; ++r) {
    F16 sum{};
    for_lanes(dim, [&](const Lanes& lanes) { sum += lanes.load(dout + r * dim) * lanes.load(out + r * dim); });
    delta[static_cast<size_t>(r)] = horizontal_sum(sum);
  }
}

// scores: scale q k -> p
void probabilities(const Mask& mask, const PerQuery& lse, Scores& scores) {
  for (int64_t q = 0; q < kBlock; q += kLanes) {
    const F16 of_query = load(&lse[q]);
    for (int64_t k = 0; k < mask.keys; ++k)
      store(&scores[k * kBlock + q], mask.select(k, q, exp(load(&scores[k * kBlock + q]) - of_query), 0.0F));
  }
  std::fill(scores.begin() + mask.keys * kBlock, scores.end(), 0.0F);
}

// dp: dout v -> ds
void score_gradients(const Scores& p, const PerQuery& delta, Scores& dp) {
  for (int64_t q = 0; q < kBlock; q += kLanes) {
    const F16 of_query = load(&delta[q]);
    for (int64_t k = 0; k < kBlock; ++k) {
      const int64_t i = k * kBlock + q;
      store(&dp[i], load(&p[i]) * (load(&dp[i]) - of_query));
    }
  }
}

struct KeyBlock {
  const float *k, *v;
  float *dk, *dv;
};

void backward_block(const QueryBlock& query, const KeyBlock& key, const Mask& mask, int64_t dim) {
  alignas(64) Scores p;
  alignas(64) Scores ds;
  inner(key.k, query.q, dim, p);
  probabilities(mask, query.lse, p);
  add_by_key(p, query.dout, dim, key.dv);
  inner(key.v, query.dout, dim, ds);
  score_gradients(p, query.delta, ds);
  add_by_key(ds, query.q, dim, key.dk);
  add_by_query(ds, key.k, dim, query.dq);
}

template <class T>
class KvHead {
 public:
  KvHead(const ops::AttentionBackward& args, int64_t begin, int64_t length, int64_t kv_head)
      : args_(args), begin_(begin), length_(length), kv_head_(kv_head), padded_(round_up(length, kBlock)) {}

  void run() {
    const int64_t count = padded_ * dim_, group = shape_.num_heads / shape_.num_kv_heads;
    keys_ = {scratch_.k.get(count), scratch_.v.get(count), scratch_.dk.zeros(count), scratch_.dv.zeros(count)};
    pack(column(args_.qkv, key_column(shape_, kv_head_)), 0, length_, padded_, 1.0F, scratch_.k.get(count));
    pack(column(args_.qkv, value_column(shape_, kv_head_)), 0, length_, padded_, 1.0F, scratch_.v.get(count));
    for (int64_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head)
      for (int64_t i = 0; i < padded_ / kBlock; ++i) query_block(head, i);
    const auto one = [](int64_t) { return 1.0F; };
    unpack(keys_.dk, 0, length_, one, column(args_.dqkv, key_column(shape_, kv_head_)));
    unpack(keys_.dv, 0, length_, one, column(args_.dqkv, value_column(shape_, kv_head_)));
  }

 private:
  Head<T> column(const Tensor& tensor, int64_t at) const { return head_of<T>(tensor, begin_, at, dim_); }

  void query_block(int64_t head, int64_t i) {
    const int64_t first = i * kBlock, rows = std::min(kBlock, length_ - first), at = query_column(shape_, head);
    QueryBlock query = load_queries(head, first, rows);
    for (int64_t j = 0; j < key_blocks(i, length_, args_.causal); ++j) {
      const int64_t offset = j * kBlock * dim_;
      backward_block(query, {keys_.k + offset, keys_.v + offset, keys_.dk + offset, keys_.dv + offset},
                     mask_of(j, i, length_, args_.causal), dim_);
    }
    unpack(query.dq, first, rows, [&](int64_t) { return args_.scale; }, column(args_.dqkv, at));
  }

  // Queries behind the sequence's end get p = exp(0 - inf) = 0.
  QueryBlock load_queries(int64_t head, int64_t first, int64_t rows) {
    const int64_t count = kBlock * dim_, at = query_column(shape_, head);
    float *q = scratch_.q.get(count), *dout = scratch_.dout.get(count), *out = scratch_.out.get(count);
    pack(column(args_.qkv, at), first, rows, kBlock, args_.scale, q);
    pack(column(args_.dout, at), first, rows, kBlock, 1.0F, dout);
    pack(column(args_.out, at), first, rows, kBlock, 1.0F, out);
    QueryBlock query{.q = q, .dout = dout, .dq = scratch_.dq.zeros(count)};
    delta_of(dout, out, dim_, query.delta);
    query.lse.fill(std::numeric_limits<float>::infinity());
    std::copy_n(args_.lse.data<float>() + head * args_.qkv.dim(0) + begin_ + first, rows, query.lse.begin());
    return query;
  }

  static thread_local Scratch scratch_;

  const ops::AttentionBackward& args_;
  const ops::AttentionShape& shape_ = args_.shape;
  const int64_t begin_, length_, kv_head_, padded_;
  const int64_t dim_ = shape_.head_dim;
  KeyBlock keys_{};
};

template <class T>
thread_local Scratch KvHead<T>::scratch_;

}  // namespace

void attention_backward(Context& ctx, const ops::AttentionBackward& args) {
  const int32_t* ends = args.cu_seqlens.data<int32_t>();
  const int64_t kv_heads = args.shape.num_kv_heads;
  with_float_type(args.qkv.dtype(), [&](auto type) {
    ctx.parallel_for((args.cu_seqlens.dim(0) - 1) * kv_heads, [&](int64_t task) {
      const int64_t s = task / kv_heads;
      if (ends[s] == ends[s + 1]) return;
      KvHead<decltype(type)>(args, ends[s], ends[s + 1] - ends[s], task % kv_heads).run();
    });
  });
}

}  // namespace cistron::cpu
