#include "cistron/ops/attention.h"

#include <cmath>
#include <limits>

#include "cistron/cpu/fast/attention_blocks.h"

namespace cistron::cpu {

namespace {

using namespace attention;  // NOLINT(google-build-using-namespace)

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Of the softmax so far: the largest score of each query, and the sum of exp(score - largest).
struct Running {
  PerQuery max, sum;
};

// p = exp(scale x score - new largest); `shrink` is what everything before must be multiplied by.
template <class B>
void online_softmax(const Tile& tile, float scale, const float* scores, Running& running, PerQuery& shrink, B* p) {
  for (int64_t q = 0; q < kBlock; q += kLanes) {
    const auto score = [&](int64_t k) { return load(&scores[k * kBlock + q]) * scale; };
    const F16 before = load(&running.max[q]);
    F16 max = before, sum{};
    for (int64_t k = 0; k < tile.keys; ++k) {
      const F16 s = tile.select(k, q, score(k), -kInfinity);
      max = s > max ? s : max;
    }
    for (int64_t k = 0; k < tile.keys; ++k) {
      const F16 e = tile.select(k, q, exp(score(k) - max), 0.0F);
      sum += e;
      store(&p[k * kBlock + q], e);
    }
    const F16 factor = exp(before - max);
    store(&shrink[q], factor);
    store(&running.max[q], max);
    store(&running.sum[q], load(&running.sum[q]) * factor + sum);
  }
  std::fill(p + tile.keys * kBlock, p + tile.padded_keys * kBlock, B(0.0F));
}

void scale_rows(const PerQuery& factor, int64_t dim, float* block) {
  for (int64_t r = 0; r < kBlock; ++r)
    for_lanes(dim, [&](const Lanes& lanes) { lanes.store(block + r * dim, lanes.load(block + r * dim) * factor[r]); });
}

template <class B>
struct Scratch {
  Buffer<B> q, k, v, p;
  Buffer<float> scores, out;
};

template <class T, class B>
void attend(const ops::AttentionForward& args, int64_t begin, int64_t length, int64_t head) {
  thread_local Scratch<B> scratch;
  const auto& shape = args.shape;
  const int64_t dim = shape.head_dim, kv_head = head / (shape.num_heads / shape.num_kv_heads), padded = round_up(length, kBlock);
  B *k = scratch.k.get(padded * dim), *v = scratch.v.get(padded * dim), *q = scratch.q.get(kBlock * dim);
  pack(head_of<T>(args.qkv, begin, key_column(shape, kv_head), dim), 0, length, padded, k);
  pack(head_of<T>(args.qkv, begin, value_column(shape, kv_head), dim), 0, length, padded, v);
  const auto queries = head_of<T>(args.qkv, begin, query_column(shape, head), dim);
  const auto target = head_of<T>(args.out, begin, query_column(shape, head), dim);
  float* lse = args.lse.data<float>() + head * args.qkv.dim(0) + begin;
  float* scores = scratch.scores.get(kMostScores);
  B* p = scratch.p.get(kMostScores);
  alignas(64) PerQuery shrink;
  for (int64_t first = 0; first < length; first += kBlock) {
    const int64_t rows = std::min(kBlock, length - first);
    pack(queries, first, rows, kBlock, q);
    float* out = scratch.out.zeros(kBlock * dim);
    alignas(64) Running running;
    running.max.fill(-kInfinity);
    running.sum.fill(0.0F);
    for_tiles(first, length, args.causal, [&](const Tile& tile) {
      inner(k + tile.first_key * dim, q, tile.padded_keys, dim, scores);
      online_softmax(tile, args.scale, scores, running, shrink, p);
      if (tile.first_key > 0) scale_rows(shrink, dim, out);
      add_by_query(p, v + tile.first_key * dim, tile.padded_keys, dim, out);
    });
    unpack(out, first, rows, [&](int64_t r) { return 1.0F / running.sum[static_cast<size_t>(r)]; }, target);
    for (int64_t r = 0; r < rows; ++r)
      lse[first + r] = running.max[static_cast<size_t>(r)] + std::log(running.sum[static_cast<size_t>(r)]);
  }
}

}  // namespace

void attention_forward(Context& ctx, const ops::AttentionForward& args) {
  const int32_t* ends = args.cu_seqlens.data<int32_t>();
  const int64_t heads = args.shape.num_heads;
  with_types(args.qkv.dtype(), [&](auto type, auto operand) {
    ctx.parallel_for((args.cu_seqlens.dim(0) - 1) * heads, [&](int64_t task) {
      const int64_t s = task / heads;
      if (ends[s] == ends[s + 1]) return;
      attend<decltype(type), decltype(operand)>(args, ends[s], ends[s + 1] - ends[s], task % heads);
    });
  });
}

}  // namespace cistron::cpu
