#include "cistron/ops/attention_decode.h"

#include <limits>
#include <vector>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
const T* query_of(const ops::AttentionDecode& args, int64_t t, int64_t head) {
  return args.qkv.data<T>() + t * args.qkv.dim(1) + head * args.shape.head_dim;
}

template <class T>
float dot(const T* a, const T* b, int64_t dim) {
  F16 sum{};
  for_lanes(dim, [&](const Lanes& lanes) { sum += lanes.load(a) * lanes.load(b); });
  return horizontal_sum(sum);
}

// Scores become exp(score - largest); gives their sum. `scores` is whole vectors long, -infinity behind the last.
float exponentials(std::vector<float>& scores) {
  F16 max = splat(-kInfinity), sum{};
  for (size_t j = 0; j < scores.size(); j += kLanes) {
    const F16 s = load(&scores[j]);
    max = s > max ? s : max;
  }
  const F16 largest = splat(horizontal_max(max));
  for (size_t j = 0; j < scores.size(); j += kLanes) {
    const F16 p = exp(load(&scores[j]) - largest);
    sum += p;
    store(&scores[j], p);
  }
  return horizontal_sum(sum);
}

// One query over the `length` rows from `keys` on, `stride` elements apart; values stand `values` elements behind their keys.
template <class T>
void attend(const ops::AttentionDecode& args, const T* query, const T* keys, int64_t values, int64_t length, T* out) {
  thread_local std::vector<float> scores;
  const int64_t dim = args.shape.head_dim, stride = args.cache.dim(2);
  scores.assign(static_cast<size_t>(round_up(length, kLanes)), -kInfinity);
  for (int64_t j = 0; j < length; ++j) scores[static_cast<size_t>(j)] = args.scale * dot(query, keys + j * stride, dim);
  const float factor = 1.0F / exponentials(scores);
  for_lanes(dim, [&](const Lanes& lanes) {
    F16 sum{};
    for (int64_t j = 0; j < length; ++j) sum += lanes.load(keys + j * stride + values) * scores[static_cast<size_t>(j)];
    lanes.store(out, sum * factor);
  });
}

template <class T>
void decode(const ops::AttentionDecode& args, int64_t t, int64_t head) {
  const auto& shape = args.shape;
  const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const int64_t row = args.slots.data<int32_t>()[t] * args.cache.dim(1);
  const T* keys = args.cache.data<T>() + row * args.cache.dim(2) + kv_head * shape.head_dim;
  T* out = args.out.data<T>() + t * shape.out_width() + head * shape.head_dim;
  attend(args, query_of<T>(args, t, head), keys, shape.num_kv_heads * shape.head_dim, args.positions.data<int32_t>()[t] + 1, out);
}

}  // namespace

void cache_store(Context& ctx, const ops::CacheStore& args) {
  const int64_t width = args.cache.dim(2), queries = args.shape.out_width();
  const int32_t *slots = args.slots.data<int32_t>(), *positions = args.positions.data<int32_t>();
  with_float_type(args.qkv.dtype(), [&](auto type) {
    using T = decltype(type);
    for_rows(ctx, args.qkv.dim(0), width, [&](int64_t t) {
      if (slots[t] < 0) return;
      const T* from = args.qkv.data<T>() + t * args.qkv.dim(1) + queries;
      std::copy_n(from, width, args.cache.data<T>() + (slots[t] * args.cache.dim(1) + positions[t]) * width);
    });
  });
}

void attention_decode(Context& ctx, const ops::AttentionDecode& args) {
  const int64_t heads = args.shape.num_heads;
  with_float_type(args.qkv.dtype(), [&](auto type) {
    ctx.parallel_for(args.qkv.dim(0) * heads, [&](int64_t task) { decode<decltype(type)>(args, task / heads, task % heads); });
  });
}

}  // namespace cistron::cpu
