#pragma once
// MXFP8 from its definition, by search instead of by bits: what every other quantiser must equal bit for bit.
#include <cmath>
#include <cstdint>
#include <vector>

#include "cistron/cpu/ref/matrix.h"
#include "cistron/ops/mxfp8.h"

namespace cistron::cpu::ref {

/// The value of an E4M3 byte.
inline double e4m3_value(uint8_t byte) {
  const int exponent = (byte >> 3) & 15;
  const int mantissa = byte & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (byte & 0x80) != 0 ? -magnitude : magnitude;
}

/// The nearest E4M3 byte, ties to the even byte, at most 448.
inline uint8_t e4m3_nearest(double x) {
  if (std::isnan(x)) return 0x7f;
  const double magnitude = std::fabs(x);
  uint8_t byte = 0x7e;
  while (byte > 0) {
    const double middle = (e4m3_value(byte) + e4m3_value(static_cast<uint8_t>(byte - 1))) / 2;
    if (magnitude > middle || (magnitude == middle && byte % 2 == 0)) break;
    --byte;
  }
  return static_cast<uint8_t>(byte | (std::signbit(x) ? 0x80 : 0));
}

inline double e8m0_value(uint8_t byte) { return byte == 0xff ? std::nan("") : std::ldexp(1.0, byte - 127); }

/// The smallest scale that takes amax to 448 or less; the largest one where none does.
inline uint8_t e8m0_smallest(double amax) {
  if (std::isnan(amax)) return 0xff;
  uint8_t byte = 0;
  while (byte < 0xfe && !(amax <= 448 * e8m0_value(byte))) ++byte;
  return byte;
}

/// Encodes value(e, r, k) into `out`, for rows and contraction below these limits.
template <class Value>
void mxfp8_encode(const ops::MxOperand& out, int64_t rows, int64_t depth, Value value) {
  const int64_t experts = out.is_weight() ? out.elements.dim(0) : 1;
  auto* elements = out.elements.data<uint8_t>();
  auto* scales = out.scales.data<uint8_t>();
  const auto each = [&](auto visit) {
    for (int64_t e = 0; e < experts; ++e)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t k = 0; k < depth; ++k) visit(e, r, k, out.scale_index(e, r, k));
  };
  std::vector<double> amax(static_cast<size_t>(out.scales.numel()), 0.0);
  each([&](int64_t e, int64_t r, int64_t k, int64_t scale) {
    double& largest = amax[static_cast<size_t>(scale)];
    const double x = std::fabs(value(e, r, k));
    if (std::isnan(x) || x > largest) largest = x;  // a NaN stays: nothing is larger
  });
  each([&](int64_t e, int64_t r, int64_t k, int64_t scale) {
    scales[scale] = e8m0_smallest(amax[static_cast<size_t>(scale)]);
    elements[(e * out.rows() + r) * out.depth() + k] = e4m3_nearest(value(e, r, k) / e8m0_value(scales[scale]));
  });
}

/// The value of every element.
inline Matrix<double> mxfp8_decode(const ops::MxOperand& x) {
  const int64_t experts = x.is_weight() ? x.elements.dim(0) : 1;
  Matrix<double> out(experts * x.rows(), x.depth());
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t r = 0; r < x.rows(); ++r)
      for (int64_t k = 0; k < x.depth(); ++k) {
        const int64_t row = e * x.rows() + r;
        out(row, k) = e4m3_value(x.elements.data<uint8_t>()[row * x.depth() + k]) *
                      e8m0_value(x.scales.data<uint8_t>()[x.scale_index(e, r, k)]);
      }
  return out;
}

}  // namespace cistron::cpu::ref
