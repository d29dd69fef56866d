#include "cistron/ops/rms_norm.h"

#include <vector>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

/// Gives rstd; out may be null.
template <class T>
float forward_row(const T* x, const float* w, float eps, int64_t hidden, T* out) {
  F16 squares{};
  for_lanes(hidden, [&](Lanes l) {
    const F16 v = l.load(x);
    squares += v * v;
  });
  const float rstd = 1.0F / std::sqrt(horizontal_sum(squares) / static_cast<float>(hidden) + eps);
  if (out != nullptr) for_lanes(hidden, [=](Lanes l) { l.store(out, l.load(x) * rstd * l.load(w)); });
  return rstd;
}

template <class T>
T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

template <class T>
struct Row {
  const T* dy;
  const T* x;
  const float* w;
  float rstd;
  int64_t hidden;
};

/// Writes or adds to dx, adds to dw.
template <class T>
void backward_row(const Row<T>& row, T* dx, bool accumulate, float* dw) {
  F16 dot{};
  for_lanes(row.hidden, [&](Lanes l) { dot += l.load(row.dy) * l.load(row.w) * l.load(row.x); });
  const float rstd = row.rstd;
  const float scale = rstd * rstd * (horizontal_sum(dot) / static_cast<float>(row.hidden));
  for_lanes(row.hidden, [&](Lanes l) {
    const F16 dy = l.load(row.dy), x = l.load(row.x);
    const F16 d = rstd * (dy * l.load(row.w) - x * scale);
    l.store(dx, accumulate ? l.load(dx) + d : d);
    l.store(dw, l.load(dw) + dy * x * rstd);
  });
}

/// sink = (or +=) the sum of the rows of `partials`, first to last.
void sum_partials(const Context& ctx, const std::vector<float>& partials, const GradSink& sink) {
  const int64_t hidden = sink.grad.numel();
  auto* dw = sink.grad.data<float>();
  const auto chunks = hidden == 0 ? 0 : static_cast<int64_t>(partials.size()) / hidden;
  for_chunks(ctx, hidden, 256, [&](int64_t begin, int64_t end) {
    for_lanes(end - begin, [&](Lanes l) {
      F16 sum{};
      for (int64_t c = 0; c < chunks; ++c) sum += l.load(partials.data() + c * hidden + begin);
      l.store(dw + begin, sink.accumulate ? l.load(dw + begin) + sum : sum);
    });
  });
}

template <class T>
void backward(const Context& ctx, const ops::RmsNormBackward& args) {
  constexpr int64_t kRows = 64;  // a partial sum of dw for each so many rows
  const int64_t rows = args.x.dim(0);
  const int64_t hidden = args.x.dim(1);
  std::vector<float> partials(static_cast<size_t>(ceil_div(rows, kRows) * hidden));
  const T *dy = args.dy.data<T>(), *x = args.x.data<T>();
  const auto *w = args.w.data<float>(), *rstd = args.rstd.data<float>();
  T* dx = args.dx.data<T>();
  for_chunks(ctx, rows, kRows, [&](int64_t begin, int64_t end) {
    float* dw = partials.data() + begin / kRows * hidden;
    for (int64_t t = begin; t < end; ++t)
      backward_row(Row<T>{dy + t * hidden, x + t * hidden, w, rstd[t], hidden}, dx + t * hidden, args.accumulate_dx, dw);
  });
  sum_partials(ctx, partials, args.dw);
}

}  // namespace

void rms_norm_forward(Context& ctx, const ops::RmsNormForward& args) {
  with_float_type(args.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t hidden = args.x.dim(1);
    const T* x = args.x.data<T>();
    const auto* w = args.w.data<float>();
    T* out = data_or_null<T>(args.out);
    auto* rstd = args.rstd.data<float>();
    const float eps = args.eps;
    for_rows(ctx, args.x.dim(0), hidden, [=](int64_t t) {
      rstd[t] = forward_row(x + t * hidden, w, eps, hidden, out == nullptr ? nullptr : out + t * hidden);
    });
  });
}

void add_rms_norm_forward(Context& ctx, const ops::AddRmsNormForward& args) {
  with_float_type(args.a.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t hidden = args.a.dim(1);
    const T *a = args.a.data<T>(), *b = args.b.data<T>();
    const auto* w = args.w.data<float>();
    T *sum = args.sum.data<T>(), *out = data_or_null<T>(args.out);
    auto* rstd = args.rstd.data<float>();
    const float eps = args.eps;
    for_rows(ctx, args.a.dim(0), hidden, [=](int64_t t) {
      const int64_t row = t * hidden;
      for_lanes(hidden, [=](Lanes l) { l.store(sum + row, l.load(a + row) + l.load(b + row)); });
      rstd[t] = forward_row(sum + row, w, eps, hidden, out == nullptr ? nullptr : out + row);
    });
  });
}

void rms_norm_backward(Context& ctx, const ops::RmsNormBackward& args) {
  with_float_type(args.x.dtype(), [&](auto type) { backward<decltype(type)>(ctx, args); });
}

}  // namespace cistron::cpu
