#include "cistron/ops/mxfp8_underflow.h"

#include <algorithm>
#include <vector>

#include "cistron/core/checked.h"
#include "cistron/ops/copy.h"

namespace cistron::ops {
namespace {

constexpr int64_t kGroupsOfTask = 1 << 13;

template <class T>
std::vector<T> on_host(Context& ctx, const Tensor& tensor) {
  std::vector<T> values;
  read_pieces(ctx, tensor, [&](std::span<const std::byte> piece) {
    const std::span part(reinterpret_cast<const T*>(piece.data()), piece.size() / sizeof(T));
    values.insert(values.end(), part.begin(), part.end());
  });
  return values;
}

Mxfp8Underflow count(const std::byte* group, int64_t size) {
  Mxfp8Underflow found{.elements = size};
  for (int64_t i = 0; i < size; ++i) {
    const auto magnitude = std::to_integer<uint32_t>(group[i]) & 0x7fU;
    found.zero += magnitude == 0 ? 1 : 0;
    found.subnormal += magnitude - 1 < 7 ? 1 : 0;
  }
  return found;
}

}  // namespace

Mxfp8Underflow& Mxfp8Underflow::operator+=(const Mxfp8Underflow& other) {
  elements += other.elements;
  subnormal += other.subnormal;
  zero += other.zero;
  return *this;
}

Mxfp8Underflow mxfp8_underflow(Context& ctx, const MxOperand& x, const Tensor& starts) {
  const std::vector<uint8_t> scales = on_host<uint8_t>(ctx, x.scales);
  const int64_t rows = starts.defined() ? on_host<int32_t>(ctx, starts).back() : x.rows();
  const Tensor elements = x.is_weight() ? x.elements : x.elements.rows(0, std::min(rows, x.rows()));
  // Of group number n, which is a piece of row n / num_groups().
  const auto is_zero = [&](int64_t n) {
    const int64_t row = n / x.num_groups(), k = n % x.num_groups() * x.group;
    return scales[static_cast<size_t>(x.scale_index(row / x.rows(), row % x.rows(), k))] == 0;
  };
  Mxfp8Underflow sum;
  int64_t before = 0;
  read_pieces(ctx, elements, [&](std::span<const std::byte> piece) {
    const int64_t groups = div_exact(std::ssize(piece), x.group);
    std::vector<Mxfp8Underflow> parts(static_cast<size_t>(ceil_div(groups, kGroupsOfTask)));
    ctx.parallel_for(std::ssize(parts), [&](int64_t task) {
      for (int64_t n = task * kGroupsOfTask; n < std::min(groups, (task + 1) * kGroupsOfTask); ++n)
        if (!is_zero(before + n)) parts[static_cast<size_t>(task)] += count(piece.data() + n * x.group, x.group);
    });
    for (const auto& part : parts) sum += part;
    before += groups;
  });
  return sum;
}

}  // namespace cistron::ops
