#pragma once
#include <cstdint>
#include <string_view>

#include "cistron/core/bf16.h"

namespace cistron {

enum class DType : uint8_t { kF32, kBF16, kF64, kI32, kI64, kU8 };

/// Bytes of one element.
int64_t size_of(DType dtype);

/// `f32`, `bf16`, ... as printed in messages.
std::string_view name_of(DType dtype);

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::kF32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::kBF16;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::kF64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::kI32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::kI64;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::kU8;
}

}  // namespace cistron
