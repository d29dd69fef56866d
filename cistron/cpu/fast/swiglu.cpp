#include "cistron/ops/swiglu.h"

#include <cstring>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/routed_rows.h"
#include "cistron/cpu/fast/swiglu_rows.h"

namespace cistron::cpu {

namespace {

template <class T>
void zero_row(T* row, int64_t n) {
  std::memset(static_cast<void*>(row), 0, static_cast<size_t>(n) * sizeof(T));
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
      SwigluRow<T>{gate_up + 2 * r * width, gate_up + (2 * r + 1) * width, weight[r], width}.forward(out + r * width);
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
    const bool accumulate = args.accumulate_dweight;
    for_rows(ctx, used_rows(args.groups), 4 * width, [=](int64_t r) {
      if (source_row[r] < 0 || !accumulate) dweight[r] = 0.0F;
      if (source_row[r] < 0) return zero_row(dgate_up + 2 * r * width, 2 * width);
      const SwigluRow<T> row{gate_up + 2 * r * width, gate_up + (2 * r + 1) * width, weight[r], width};
      dweight[r] += row.backward(dy + r * width, dgate_up + 2 * r * width, dgate_up + (2 * r + 1) * width);
    });
  });
}

}  // namespace cistron::cpu
