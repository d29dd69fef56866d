#include "cistron/ops/swiglu.h"

#include <cstring>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/routed_rows.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

template <class T>
void zero_row(T* row, int64_t n) {
  std::memset(static_cast<void*>(row), 0, static_cast<size_t>(n) * sizeof(T));
}

template <class T>
void forward_row(const T* gate_up, float weight, int64_t width, T* y) {
  for_lanes(width, [=](Lanes l) {
    const F16 g = l.load(gate_up);
    l.store(y, g * sigmoid(g) * l.load(gate_up + width) * weight);
  });
}

/// Gives dweight.
template <class T>
float backward_row(const T* dy, const T* gate_up, float weight, int64_t width, T* dgate_up) {
  F16 dweight{};
  for_lanes(width, [&](Lanes l) {
    const F16 d = l.load(dy), g = l.load(gate_up), u = l.load(gate_up + width);
    const F16 sig = sigmoid(g);
    const F16 silu = g * sig;
    l.store(dgate_up, d * weight * u * (sig * (1.0F + g * (1.0F - sig))));
    l.store(dgate_up + width, d * weight * silu);
    dweight += d * silu * u;
  });
  return horizontal_sum(dweight);
}

}  // namespace

void scaled_swiglu_forward(Context& ctx, const ops::ScaledSwigluForward& args) {
  with_float_type(args.out.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t width = args.out.dim(1);
    const T* gate_up = args.gate_up.data<T>();
    const auto* source_row = args.groups.source_row.data<int32_t>();
    const auto* weight = args.groups.weight.data<float>();
    T* out = args.out.data<T>();
    for_rows(ctx, used_rows(args.groups), 2 * width, [=](int64_t r) {
      if (source_row[r] < 0) return zero_row(out + r * width, width);
      forward_row(gate_up + 2 * r * width, weight[r], width, out + r * width);
    });
  });
}

void scaled_swiglu_backward(Context& ctx, const ops::ScaledSwigluBackward& args) {
  with_float_type(args.dy.dtype(), [&](auto type) {
    using T = decltype(type);
    const int64_t width = args.dy.dim(1);
    const T *dy = args.dy.data<T>(), *gate_up = args.gate_up.data<T>();
    const auto* source_row = args.groups.source_row.data<int32_t>();
    const auto* weight = args.groups.weight.data<float>();
    T* dgate_up = args.dgate_up.data<T>();
    auto* dweight = args.dweight.data<float>();
    for_rows(ctx, used_rows(args.groups), 4 * width, [=](int64_t r) {
      dweight[r] = 0.0F;
      if (source_row[r] < 0) return zero_row(dgate_up + 2 * r * width, 2 * width);
      dweight[r] = backward_row(dy + r * width, gate_up + 2 * r * width, weight[r], width, dgate_up + 2 * r * width);
    });
  });
}

}  // namespace cistron::cpu
