#include "cistron/ops/attention_decode.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
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

// Lane i of the result is a sum of two lanes, `width` apart, of a (the first `width` lanes of each group of 2 width) or of b.
template <int width, size_t... lane>
F16 fold(F16 a, F16 b, std::index_sequence<lane...> /*lanes*/) {
  constexpr auto from = [](int i) { return i / (2 * width) * (2 * width) + i % width + (i % (2 * width) < width ? 0 : 16); };
  return __builtin_shufflevector(a, b, from(lane)...) + __builtin_shufflevector(a, b, (from(lane) + width)...);
}
template <int width>
F16 fold(F16 a, F16 b) {
  return fold<width>(a, b, std::make_index_sequence<kLanes>());
}

// Lane i: the horizontal sum of v[i], by `horizontal_sum`'s own additions. Folding two by two leaves the vectors' order
// bit-reversed.
F16 horizontal_sums(const std::array<F16, kLanes>& v) {
  constexpr std::array<size_t, kLanes> kOrder = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
  std::array<F16, 8> by8;
  for (size_t i = 0; i < 8; ++i) by8[i] = fold<8>(v[kOrder[2 * i]], v[kOrder[2 * i + 1]]);
  std::array<F16, 4> by4;
  for (size_t i = 0; i < 4; ++i) by4[i] = fold<4>(by8[2 * i], by8[2 * i + 1]);
  return fold<1>(fold<2>(by4[0], by4[1]), fold<2>(by4[2], by4[3]));
}

// Of a query and the `count` <= 16 keys from `keys` on.
template <class T>
F16 dots(const T* query, const T* keys, int64_t count, int64_t dim) {
  std::array<F16, kLanes> sums{};
  for (int64_t j = 0; j < count; ++j)
    for_lanes(dim, [&](const Lanes& l) { sums[static_cast<size_t>(j)] += l.load(query) * l.load(keys + j * dim); });
  return horizontal_sums(sums);
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

// n windows of 16 values at once: as many chains of sums.
template <int n, class T>
void weigh(const std::vector<float>& weights, const T* values, int64_t dim, float factor, T* out) {
  std::array<F16, n> sums{};
  for (size_t j = 0; j < weights.size(); ++j)
    for (int i = 0; i < n; ++i) sums[i] += load(values + static_cast<int64_t>(j) * dim + i * kLanes) * weights[j];
  for (int i = 0; i < n; ++i) store(out + i * kLanes, sums[i] * factor);
}

// out = factor x the sum of rows of values by their weights.
template <class T>
void weigh(const std::vector<float>& weights, const T* values, int64_t dim, float factor, T* out) {
  constexpr int64_t kWide = 4 * kLanes;
  int64_t d = 0;
  for (; d + kWide <= dim; d += kWide) weigh<4>(weights, values + d, dim, factor, out + d);
  for (; d + kLanes <= dim; d += kLanes) weigh<1>(weights, values + d, dim, factor, out + d);
  if (d == dim) return;
  F16 sum{};
  for (size_t j = 0; j < weights.size(); ++j) sum += load_first(values + static_cast<int64_t>(j) * dim + d, dim - d) * weights[j];
  store_first(out + d, dim - d, sum * factor);
}

// One query over the `length` rows from `keys` and `values` on.
template <class T>
void attend(const ops::AttentionDecode& args, const T* query, const T* keys, const T* values, int64_t length, T* out) {
  thread_local std::vector<float> scores;
  const int64_t dim = args.shape.head_dim;
  scores.resize(static_cast<size_t>(round_up(length, kLanes)));
  for (int64_t j = 0; j < length; j += kLanes) {
    const int64_t count = std::min(kLanes, length - j);
    store(&scores[static_cast<size_t>(j)], args.scale * dots(query, keys + j * dim, count, dim));
    std::fill_n(scores.begin() + j + count, kLanes - count, -kInfinity);
  }
  const float factor = 1.0F / exponentials(scores);
  scores.resize(static_cast<size_t>(length));
  weigh(scores, values, dim, factor, out);
}

template <class T>
void decode(const ops::AttentionDecode& args, int64_t t, int64_t head) {
  const auto& shape = args.shape;
  const int64_t kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const int64_t elements = args.cache.dim(2) * shape.head_dim;  // of a head
  const T* keys = args.cache.data<T>() + (args.slots.data<int32_t>()[t] * args.cache.dim(1) + kv_head) * elements;
  const T* values = keys + shape.num_kv_heads * elements;
  T* out = args.out.data<T>() + t * shape.out_width() + head * shape.head_dim;
  attend(args, query_of<T>(args, t, head), keys, values, args.positions.data<int32_t>()[t] + 1, out);
}

}  // namespace

void cache_store(Context& ctx, const ops::CacheStore& args) {
  const int64_t heads = args.cache.dim(1), capacity = args.cache.dim(2), dim = args.cache.dim(3);
  const int32_t *slots = args.slots.data<int32_t>(), *positions = args.positions.data<int32_t>();
  with_float_type(args.qkv.dtype(), [&](auto type) {
    using T = decltype(type);
    for_rows(ctx, args.qkv.dim(0), heads * dim, [&](int64_t t) {
      if (slots[t] < 0) return;
      const T* from = args.qkv.data<T>() + t * args.qkv.dim(1) + args.shape.out_width();
      T* to = args.cache.data<T>() + (slots[t] * heads * capacity + positions[t]) * dim;
      for (int64_t h = 0; h < heads; ++h) std::copy_n(from + h * dim, dim, to + h * capacity * dim);
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
