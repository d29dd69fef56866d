#pragma once
// How the CPU's operations cut their work: into chunks whose bounds depend on shapes alone.
#include <algorithm>
#include <utility>

#include "cistron/core/checked.h"
#include "cistron/core/context.h"

namespace cistron::cpu {

/// Elements that make a task worth starting.
constexpr int64_t kTaskElements = 16384;

/// f(begin, end) over [0, n) in chunks of `chunk`.
template <class F>
void for_chunks(const Context& ctx, int64_t n, int64_t chunk, F&& f) {
  ctx.parallel_for(ceil_div(n, chunk), [&](int64_t i) { f(i * chunk, std::min(n, (i + 1) * chunk)); });
}

/// f(row) over [0, rows), several rows of `cols` elements a task.
template <class F>
void for_rows(const Context& ctx, int64_t rows, int64_t cols, F&& f) {
  for_chunks(ctx, rows, std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, cols)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r);
  });
}

/// f(T{}) with the C++ type of a floating dtype that kernels compute on: f32 or bf16.
template <class F>
void with_float_type(DType dtype, F&& f) {
  CISTRON_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "no arithmetic on {}", name_of(dtype));
  if (dtype == DType::kF32)
    f(float{});
  else
    f(bf16{});
}

}  // namespace cistron::cpu
