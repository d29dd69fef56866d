#include <algorithm>
#include <cmath>
#include <vector>

#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/vec_math.h"
#include "cistron/ops/attention.h"

namespace cistron::cpu {

namespace {

// cos and sin of position x theta^(-2i/D), [rows, D / 2]. Sequences share their positions, so a row is one position where that
// makes the table no longer than the batch, else one token.
class Rotations {
 public:
  Rotations(const Context& ctx, const ops::Rope& args)
      : half_(args.shape.head_dim / 2), positions_(args.positions.span<int32_t>()) {
    const auto [least, most] = std::minmax_element(positions_.begin(), positions_.end());
    by_position_ = *least >= 0 && *most < static_cast<int64_t>(positions_.size());
    const int64_t rows = by_position_ ? *most + 1 : static_cast<int64_t>(positions_.size());
    cos_.resize(static_cast<size_t>(rows * half_));
    sin_.resize(cos_.size());
    std::vector<double> frequency(static_cast<size_t>(half_));
    for (int64_t i = 0; i < half_; ++i)
      frequency[static_cast<size_t>(i)] =
          std::pow(static_cast<double>(args.theta), -static_cast<double>(i) / static_cast<double>(half_));
    for_rows(ctx, rows, 16 * half_, [&](int64_t r) { fill(r, frequency, args.inverse); });
  }
  [[nodiscard]] const float* cos(int64_t token) const { return &cos_[row(token)]; }
  [[nodiscard]] const float* sin(int64_t token) const { return &sin_[row(token)]; }

 private:
  [[nodiscard]] size_t row(int64_t token) const {
    return static_cast<size_t>((by_position_ ? positions_[static_cast<size_t>(token)] : token) * half_);
  }
  void fill(int64_t r, const std::vector<double>& frequency, bool inverse) {
    const double position = static_cast<double>(by_position_ ? r : positions_[static_cast<size_t>(r)]);
    for (size_t i = 0; i < frequency.size(); ++i) {
      const double angle = position * frequency[i];
      cos_[static_cast<size_t>(r * half_) + i] = static_cast<float>(std::cos(angle));
      sin_[static_cast<size_t>(r * half_) + i] = static_cast<float>(inverse ? -std::sin(angle) : std::sin(angle));
    }
  }

  int64_t half_;
  std::span<int32_t> positions_;
  bool by_position_ = false;
  std::vector<float> cos_, sin_;
};

template <class T>
void rotate(T* head, const float* cos, const float* sin, int64_t half) {
  for_lanes(half, [&](const Lanes& lanes) {
    const F16 a = lanes.load(head), b = lanes.load(head + half), c = lanes.load(cos), s = lanes.load(sin);
    lanes.store(head, a * c - b * s);
    lanes.store(head + half, b * c + a * s);
  });
}

}  // namespace

void rope(Context& ctx, const ops::Rope& args) {
  if (args.positions.numel() == 0) return;
  const auto& shape = args.shape;
  const Rotations rotations(ctx, args);
  with_float_type(args.qkv.dtype(), [&](auto type) {
    auto* qkv = args.qkv.data<decltype(type)>();
    for_rows(ctx, args.qkv.dim(0), shape.qkv_width(), [&](int64_t t) {
      for (int64_t h = 0; h < shape.num_heads + shape.num_kv_heads; ++h)
        rotate(qkv + t * shape.qkv_width() + h * shape.head_dim, rotations.cos(t), rotations.sin(t), shape.head_dim / 2);
    });
  });
}

}  // namespace cistron::cpu
