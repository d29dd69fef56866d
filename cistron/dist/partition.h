#pragma once
// Which part of what belongs to whom: pure functions, the same on every rank and in `cistron plan`.
#include <cstdint>

#include "cistron/core/shape.h"

namespace cistron::dist {

/// [begin, begin + count)
struct Range {
  int64_t begin = 0;
  int64_t count = 0;
  [[nodiscard]] int64_t end() const { return begin + count; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Part `part` of `count` things cut into `parts` contiguous ones, which differ by one at most; the first ones are longer.
Range even_part(int64_t count, int parts, int part);

/// The experts of ep rank `index`: an even part, so ep need not divide the experts. Throws Error(kUsage) when ep > experts, since
/// a rank without an expert would only wait.
Range experts_of(int64_t experts, int ep, int index);

/// Shards are cut between blocks of this many rows (decided with the formats that scale 128 x 128 blocks together).
constexpr int64_t kShardRows = 128;

/// The rows of part `part` of a tensor [..., N, K], counted over all dims but the last; of [N], elements. Cuts fall only between
/// matrices [N, K] (experts) or between blocks of `kShardRows` rows of one, each at the legal place nearest to an even cut: so
/// where `parts` divides the experts, shards are whole experts. A part may be empty; none exceeds an even one by more than
/// `kShardRows` rows.
Range shard_rows(const Shape& shape, int parts, int part);

}  // namespace cistron::dist
