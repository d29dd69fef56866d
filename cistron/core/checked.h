#pragma once
// Integer arithmetic that refuses instead of wrapping. Sizes are int64_t everywhere.
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cistron/core/error.h"

namespace cistron {

/// ceil(a / b) for a >= 0, b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The smallest multiple of `b` that is at least `a`.
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/// a / b; throws unless b divides a.
inline int64_t div_exact(int64_t a, int64_t b) {
  CISTRON_CHECK(b != 0 && a % b == 0, "{} is not a multiple of {}", a, b);
  return a / b;
}

/// a * b; throws on overflow.
inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  CISTRON_CHECK(!__builtin_mul_overflow(a, b, &product), "{} x {} overflows 64 bits", a, b);
  return product;
}

/// a + b; throws on overflow.
inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  CISTRON_CHECK(!__builtin_add_overflow(a, b, &sum), "{} + {} overflows 64 bits", a, b);
  return sum;
}

/// Converts between integer types; throws when the value does not fit.
template <class To, class From>
To narrow(From value) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  const auto result = static_cast<To>(value);
  CISTRON_CHECK(static_cast<From>(result) == value && (result < To{}) == (value < From{}), "{} does not fit in {} bits", value,
                8 * sizeof(To));
  return result;
}

}  // namespace cistron
