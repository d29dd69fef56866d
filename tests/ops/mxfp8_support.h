#pragma once
// What the tests of MXFP8 share: the reference quantisers over tensors, and comparisons of both copies.
#include <cstring>

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

}  // namespace cistron::test
