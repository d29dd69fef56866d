#pragma once
// Weights that the optimizer quantises, for its tests on the CPU and on a card.
#include "tests/ops/mxfp8_support.h"
#include "tests/ops/optimizer_support.h"

namespace cistron::test {

struct MxCase {
  Shape shape;
  int64_t group, sections;

  [[nodiscard]] Shape matrices() const { return shape.rank() == 2 ? Shape{1, shape[0], shape[1]} : shape; }
  [[nodiscard]] MxTensor empty(const Context& ctx) const { return ops::mxfp8_empty_weights(ctx, matrices(), group, sections); }
};
inline const MxCase kMxCases[] = {
    {{128, 128}, 128, 1},    {{256, 640}, 128, 1},   {{2, 256, 384}, 128, 1},
    {{3, 512, 128}, 128, 2}, {{2, 320, 224}, 32, 2}, {{96, 160}, 32, 1},
};
inline constexpr DType kMxStates[] = {DType::kF32, DType::kBF16, DType::kU8};

/// Before a step; where there is more than one block an infinity and a NaN among them.
inline ops::AdamWTensor random_weights(const Context& ctx, const MxCase& c, DType states) {
  ops::AdamWTensor t = random_kept(ctx, c.shape, {DType::kF32, states}, 0.1F, 3);
  const std::span<float> master = t.master.span<float>();
  if (c.shape.numel() <= c.group * c.group) return t;
  master[5] = INFINITY;
  master[master.size() - 3] = NAN;
  return t;
}

}  // namespace cistron::test
