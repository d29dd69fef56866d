#include "cistron/ops/cross_entropy.h"

#include <cmath>
#include <limits>

#include "cistron/core/error.h"
#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/products.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

struct Softmax {
  float max, sum;  // sum of exp(logit - max)
};

// Lanes behind the end of the row hold -inf: they are never the largest and their exponential is 0.
F16 logits_at(const float* row, const Lanes& lanes) {
  F16 v = lanes.load(row);
  for (int64_t i = lanes.count; i < kLanes; ++i) v[i] = -std::numeric_limits<float>::infinity();
  return v;
}

Softmax softmax(const float* row, int64_t n) {
  F16 largest = splat(-std::numeric_limits<float>::infinity()), sum{};
  for_lanes(n, [&](const Lanes& lanes) {
    const F16 v = logits_at(row, lanes);
    largest = v > largest ? v : largest;
  });
  const float max = horizontal_max(largest);
  for_lanes(n, [&](const Lanes& lanes) { sum += exp(logits_at(row, lanes) - max); });
  return {max, horizontal_sum(sum)};
}

// `row` may be the start of `out`.
template <class T>
void gradient(const float* row, int64_t n, const Softmax& s, int32_t label, float factor, T* out) {
  const float at_label = factor * (std::exp(row[label] - s.max) / s.sum - 1.0F);
  for_lanes(n, [&](const Lanes& lanes) { lanes.store(out, exp(lanes.load(row) - s.max) * (factor / s.sum)); });
  out[label] = T(at_label);
}

struct Chunk {
  const ops::LinearCrossEntropy& args;
  int64_t begin, rows;
};

template <class T>
void loss_of_row(const Chunk& chunk, int64_t r) {
  const auto& a = chunk.args;
  const int64_t n = a.w.dim(0), t = chunk.begin + r;
  const int32_t label = a.labels.data<int32_t>()[t];
  const float* row = a.logits.data<float>() + r * n;
  T* dlogits = a.dx.defined() ? a.dlogits.data<T>() + r * n : nullptr;
  if (label < 0) {
    a.nll.data<float>()[t] = 0.0F;
    if (dlogits != nullptr) std::fill_n(dlogits, n, T(0.0F));
    return;
  }
  const Softmax s = softmax(row, n);
  a.nll.data<float>()[t] = std::log(s.sum) + (s.max - row[label]);
  if (dlogits != nullptr) gradient(row, n, s, label, a.state->loss_scale * a.loss_weight.data<float>()[t], dlogits);
}

void logits_of_chunk(const Context& ctx, const Chunk& chunk) {
  const auto& a = chunk.args;
  row_product(ctx,
              {.x = a.x.rows(chunk.begin, chunk.rows).raw(),
               .w = a.w.raw(),
               .y = a.logits.raw(),
               .n = a.w.dim(0),
               .k = a.w.dim(1),
               .transpose_w = true,
               .in = a.x.dtype(),
               .out = DType::kF32},
              chunk.rows);
}

void gradients_of_chunk(const Context& ctx, const Chunk& chunk) {
  const auto& a = chunk.args;
  const DType dtype = a.x.dtype();
  row_product(ctx,
              {.x = a.dlogits.raw(),
               .w = a.w.raw(),
               .y = a.dx.rows(chunk.begin, chunk.rows).raw(),
               .n = a.w.dim(1),
               .k = a.w.dim(0),
               .in = dtype,
               .out = dtype},
              chunk.rows);
  outer_product(ctx, {.dy = a.dlogits.raw(),
                      .x = a.x.rows(chunk.begin, chunk.rows).raw(),
                      .dw = a.dw.grad.data<float>(),
                      .rows = chunk.rows,
                      .n = a.w.dim(0),
                      .k = a.w.dim(1),
                      .accumulate = a.dw.accumulate || chunk.begin > 0,
                      .in = dtype});
}

void check_labels(const ops::LinearCrossEntropy& args) {
  const auto labels = args.labels.span<int32_t>();
  for (size_t t = 0; t < labels.size(); ++t)
    if (labels[t] >= args.w.dim(0))
      throw Error(ErrorKind::kBadData, fmt::format("label {}", labels[t]), fmt::format("position {} of the batch", t),
                  fmt::format("the vocabulary has {} tokens", args.w.dim(0)));
}

void add_to_loss(const ops::LinearCrossEntropy& args) {
  const auto nll = args.nll.span<float>(), weight = args.loss_weight.span<float>();
  const auto labels = args.labels.span<int32_t>();
  double sum = 0;
  for (size_t t = 0; t < nll.size(); ++t)
    if (labels[t] >= 0) sum += static_cast<double>(weight[t]) * static_cast<double>(nll[t]);
  *args.loss.data<double>() += sum;
}

}  // namespace

void linear_cross_entropy(Context& ctx, const ops::LinearCrossEntropy& args) {
  check_labels(args);
  const int64_t tokens = args.x.dim(0), step = std::max<int64_t>(1, args.logits.dim(0));
  for (int64_t begin = 0; begin == 0 || begin < tokens; begin += step) {
    const Chunk chunk{args, begin, std::min(step, tokens - begin)};
    logits_of_chunk(ctx, chunk);
    with_float_type(args.x.dtype(), [&](auto type) {
      for_rows(ctx, chunk.rows, args.w.dim(0), [&](int64_t r) { loss_of_row<decltype(type)>(chunk, r); });
    });
    if (args.dx.defined()) gradients_of_chunk(ctx, chunk);
  }
  add_to_loss(args);
}

}  // namespace cistron::cpu
