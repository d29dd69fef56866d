#pragma once
// What the tests of MXFP8 share: the reference quantisers over tensors, and comparisons of both copies.
#include <algorithm>
#include <numeric>

#include "cistron/core/checked.h"
#include "cistron/cpu/ref/grouped_gemm.h"
#include "cistron/cpu/ref/mxfp8.h"
#include "tests/ops/support.h"

namespace cistron::test {

inline void poison(const ops::MxTensor& t) {
  for (const auto* operand : {&t.rows, &t.columns})
    if (operand->defined()) poison(operand->elements), poison(operand->scales);
}

/// Reference for `mxfp8_quantize`, which sees only rows below `end`.
inline void reference_quantize(const Tensor& x, const Tensor& source_row, int64_t end, const ops::MxTensor& out) {
  const auto values = to_matrix(x);
  const auto at = [&](int64_t r, int64_t k) {
    if (source_row.defined() ? r >= source_row.dim(0) : r >= values.rows) return 0.0;
    const int64_t row = source_row.defined() ? source_row.data<int32_t>()[r] : r;
    return row < 0 ? 0.0 : values(row, k);
  };
  const auto zero_scales = [](const ops::MxOperand& operand, int64_t groups, int64_t from, int64_t to) {
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t r = from; r < to; ++r) operand.scales.data<uint8_t>()[g * operand.scales.dim(1) + r] = 0;
  };
  const int64_t rows = std::min(end, out.rows.rows());
  zero_scales(out.rows, out.rows.num_groups(), rows, end);
  cpu::ref::mxfp8_encode(out.rows, rows, values.cols, [&](int64_t, int64_t r, int64_t k) { return at(r, k); });
  zero_scales(out.columns, end / out.columns.group, values.cols, out.columns.scales.dim(1));
  cpu::ref::mxfp8_encode(out.columns, values.cols, end, [&](int64_t, int64_t r, int64_t k) { return at(k, r); });
}

inline void reference_quantize_weights(const Tensor& w, const ops::MxTensor& out) {
  const auto values = to_matrix(w);
  const int64_t n = w.dim(1);
  const int64_t k = w.dim(2);
  cpu::ref::mxfp8_encode(out.rows, n, k, [&](int64_t e, int64_t r, int64_t c) { return values(e * n + r, c); });
  cpu::ref::mxfp8_encode(out.columns, k, n, [&](int64_t e, int64_t r, int64_t c) { return values(e * n + c, r); });
}

inline testing::AssertionResult same_bits(const ops::MxOperand& got, const ops::MxOperand& want) {
  if (auto elements = same_bits(got.elements, want.elements); !elements) return elements << " (elements)";
  if (auto scales = same_bits(got.scales, want.scales); !scales) return scales << " (scales)";
  return testing::AssertionSuccess();
}
inline testing::AssertionResult same_bits(const ops::MxTensor& got, const ops::MxTensor& want) {
  if (auto rows = same_bits(got.rows, want.rows); !rows) return rows << " (rows)";
  if (auto columns = same_bits(got.columns, want.columns); !columns) return columns << " (columns)";
  return testing::AssertionSuccess();
}

/// Random values over many magnitudes, with zeros, denormals, infinities and NaN among them where `odd`.
inline Tensor mxfp8_values(const Context& ctx, const Shape& shape, DType dtype, uint64_t seed, bool odd = true) {
  const Tensor scaled = random_tensor(ctx, shape, DType::kF64, seed);
  const Tensor exponents = random_ints(ctx, shape, seed + 1, 24);
  const Tensor picks = random_ints(ctx, shape, seed + 2, 4000);
  const double special[] = {0.0, -0.0, 0x1p-130, -0x1p-133, INFINITY, -INFINITY, NAN, 448.0, 450.0, 0x1.ep127};
  std::vector<double> values = to_double(scaled);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], exponents.data<int32_t>()[i] - 12);
    const auto pick = static_cast<size_t>(picks.data<int32_t>()[i]);
    if (odd && pick < std::size(special)) values[i] = special[pick];
  }
  return tensor_of(ctx, shape, dtype, values);
}

/// Segments with these counts at multiples of 128, one unused block of rows after the last.
struct Mxfp8Groups {
  ops::Groups groups;
  cpu::ref::Segments segments;

  [[nodiscard]] int64_t total() const { return std::accumulate(segments.counts.begin(), segments.counts.end(), int64_t{0}); }
  [[nodiscard]] int64_t busiest() const {
    return std::max_element(segments.counts.begin(), segments.counts.end()) - segments.counts.begin();
  }
};

inline Mxfp8Groups mxfp8_groups(const Context& ctx, const std::vector<int64_t>& counts) {
  Mxfp8Groups made;
  std::vector<double> starts{0};
  for (const int64_t count : counts) {
    made.segments.counts.push_back(count);
    made.segments.starts.push_back(static_cast<int64_t>(starts.back()));
    starts.push_back(starts.back() + static_cast<double>(round_up(count, 128)));
  }
  const auto experts = static_cast<int64_t>(counts.size());
  const auto rows = static_cast<int64_t>(starts.back()) + 128;
  made.groups = {.starts = tensor_of(ctx, {experts + 1}, DType::kI32, starts),
                 .counts = tensor_of(ctx, {experts}, DType::kI32, {counts.begin(), counts.end()}),
                 .source_row = poisoned(ctx, {rows}, DType::kI32),
                 .weight = poisoned(ctx, {rows}, DType::kF32),
                 .token_rows = poisoned(ctx, {rows, 1}, DType::kI32)};
  return made;
}

/// Random bf16 rows, zeros in pad rows, NaN past the last segment.
inline Tensor routed_rows(const Context& ctx, const Mxfp8Groups& routed, int64_t width, uint64_t seed, double scale = 1.0) {
  Tensor x = poisoned(ctx, {routed.groups.max_rows(), width}, DType::kBF16);
  const Tensor values = random_tensor(ctx, x.shape(), DType::kBF16, seed, scale);
  const auto end = routed.groups.starts.data<int32_t>()[routed.groups.num_experts()];
  std::fill_n(x.data<bf16>(), end * width, bf16(0.0F));
  cpu::ref::for_rows(routed.segments, [&](int64_t, int64_t r) {
    std::copy_n(values.data<bf16>() + r * width, width, x.data<bf16>() + r * width);
  });
  return x;
}

/// The same in MXFP8, poisoned past the last segment.
inline ops::MxTensor mxfp8_routed(Context& ctx, const Mxfp8Groups& routed, int64_t width, int64_t group, uint64_t seed) {
  const auto out = ops::mxfp8_empty(ctx, routed.groups.max_rows(), width, group);
  poison(out);
  ops::mxfp8_quantize(ctx, {.x = routed_rows(ctx, routed, width, seed), .out = out, .starts = routed.groups.starts});
  return out;
}

inline cpu::ref::Matrix<double> transposed(const cpu::ref::Matrix<double>& x) {
  cpu::ref::Matrix<double> out(x.cols, x.rows);
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.cols; ++c) out(c, r) = x(r, c);
  return out;
}

inline std::vector<double> rows_in_use(const cpu::ref::Matrix<double>& x, const cpu::ref::Segments& segments) {
  std::vector<double> used;
  cpu::ref::for_rows(segments, [&](int64_t, int64_t r) {
    for (int64_t c = 0; c < x.cols; ++c) used.push_back(x(r, c));
  });
  return used;
}
inline std::vector<double> rows_in_use(const Tensor& x, const cpu::ref::Segments& segments) {
  return rows_in_use(to_matrix(x), segments);
}

/// ||got - want|| / ||want||, infinite where anything is NaN; 0 for nothing against nothing.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  if (std::isnan(difference)) return INFINITY;
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace cistron::test
