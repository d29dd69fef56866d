#include "cistron/ops/attention.h"

#include <cmath>
#include <limits>

#include "cistron/cpu/fast/attention_blocks.h"
#include "cistron/cpu/fast/parallel.h"

namespace cistron::cpu {

namespace {

using namespace attention;  // NOLINT(google-build-using-namespace)

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Of the softmax so far: the largest score of each query, and the sum of exp(score - largest).
struct Running {
  PerQuery max, sum;
};

// Scores become exp(score - new largest); `shrink` is what everything before must be multiplied by.
void online_softmax(const Mask& mask, Scores& scores, Running& running, PerQuery& shrink) {
  for (int64_t q = 0; q < kBlock; q += kLanes) {
    const F16 before = load(&running.max[q]);
    F16 max = before, sum{};
    for (int64_t k = 0; k < mask.keys; ++k) {
      const F16 s = mask.select(k, q, load(&scores[k * kBlock + q]), -kInfinity);
      max = s > max ? s : max;
    }
    for (int64_t k = 0; k < mask.keys; ++k) {
      const F16 p = mask.select(k, q, exp(load(&scores[k * kBlock + q]) - max), 0.0F);
      sum += p;
      store(&scores[k * kBlock + q], p);
    }
    const F16 factor = exp(before - max);
    store(&shrink[q], factor);
    store(&running.max[q], max);
    store(&running.sum[q], load(&running.sum[q]) * factor + sum);
  }
  std::fill(scores.begin() + mask.keys * kBlock, scores.end(), 0.0F);
}

void scale_rows(const PerQuery& factor, int64_t dim, float* block) {
  for (int64_t r = 0; r < kBlock; ++r)
    for_lanes(dim, [&](const Lanes& lanes) { lanes.store(block + r * dim, lanes.load(block + r * dim) * factor[r]); });
}

struct Scratch {
  Buffer q, k, v, out;
};

template <class T>
void attend(const ops::AttentionForward& args, int64_t begin, int64_t length, int64_t head) {
  thread_local Scratch scratch;
  const auto& shape = args.shape;
  const int64_t dim = shape.head_dim, kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const int64_t blocks = ceil_div(length, kBlock), padded = blocks * kBlock;
  float *k = scratch.k.get(padded * dim), *v = scratch.v.get(padded * dim), *q = scratch.q.get(kBlock * dim);
  pack(head_of<T>(args.qkv, begin, key_column(shape, kv_head), dim), 0, length, padded, 1.0F, k);
  pack(head_of<T>(args.qkv, begin, value_column(shape, kv_head), dim), 0, length, padded, 1.0F, v);
  const auto queries = head_of<T>(args.qkv, begin, query_column(shape, head), dim);
  const auto target = head_of<T>(args.out, begin, query_column(shape, head), dim);
  float* lse = args.lse.data<float>() + head * args.qkv.dim(0) + begin;
  alignas(64) Scores scores;
  alignas(64) PerQuery shrink;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t first = i * kBlock, rows = std::min(kBlock, length - first);
    pack(queries, first, rows, kBlock, args.scale, q);
    float* out = scratch.out.zeros(kBlock * dim);
    alignas(64) Running running;
    running.max.fill(-kInfinity);
    running.sum.fill(0.0F);
    for (int64_t j = 0; j < key_blocks(i, length, args.causal); ++j) {
      inner(k + j * kBlock * dim, q, dim, scores);
      online_softmax(mask_of(j, i, length, args.causal), scores, running, shrink);
      if (j > 0) scale_rows(shrink, dim, out);
      add_by_query(scores, v + j * kBlock * dim, dim, out);
    }
    unpack(out, first, rows, [&](int64_t r) { return 1.0F / running.sum[static_cast<size_t>(r)]; }, target);
    for (int64_t r = 0; r < rows; ++r)
      lse[first + r] = running.max[static_cast<size_t>(r)] + std::log(running.sum[static_cast<size_t>(r)]);
  }
}

}  // namespace

void attention_forward(Context& ctx, const ops::AttentionForward& args) {
  const int32_t* ends = args.cu_seqlens.data<int32_t>();
  const int64_t heads = args.shape.num_heads;
  with_float_type(args.qkv.dtype(), [&](auto type) {
    ctx.parallel_for((args.cu_seqlens.dim(0) - 1) * heads, [&](int64_t task) {
      const int64_t s = task / heads;
      if (ends[s] == ends[s + 1]) return;
      attend<decltype(type)>(args, ends[s], ends[s + 1] - ends[s], task % heads);
    });
  });
}

}  // namespace cistron::cpu
