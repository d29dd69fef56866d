#include "cistron/cpu/fast/biased_rows.h"

#include <vector>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/vec_math.h"

namespace cistron::cpu {

namespace {

std::byte* at(void* base, int64_t element, DType dtype) { return static_cast<std::byte*>(base) + element * size_of(dtype); }

/// This thread's, kept between calls.
float* sums(int64_t elements) {
  thread_local std::vector<float> buffer;
  if (std::ssize(buffer) < elements) buffer.resize(static_cast<size_t>(elements));
  return buffer.data();
}

}  // namespace

void row_product(const RowProduct& p, const RowBias& bias, Range rows, Range columns) {
  if (bias.values == nullptr) return row_product(p, rows, columns);
  float* tile = sums(rows.count * columns.count);
  const RowProduct product{.x = at(p.x, rows.begin * p.k, p.in),
                           .w = at(p.w, columns.begin * p.k, p.in),
                           .y = tile,
                           .n = columns.count,
                           .k = p.k,
                           .transpose_w = true,
                           .in = p.in};
  row_product(product, {0, rows.count}, {0, columns.count});
  with_float_type(p.out, [&](auto type) {
    using T = decltype(type);
    const float* values = bias.values + columns.begin;
    for (int64_t r = 0; r < rows.count; ++r) {
      const float scale = bias.of_row(rows.begin + r);
      const float* sum = tile + r * columns.count;
      T* y = static_cast<T*>(p.y) + (rows.begin + r) * p.n + columns.begin;
      for_lanes(columns.count, [=](Lanes l) { l.store(y, l.load(sum) + scale * l.load(values)); });
    }
  });
}

}  // namespace cistron::cpu
