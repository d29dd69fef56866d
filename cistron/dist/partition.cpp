#include "cistron/dist/partition.h"

#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/core/error.h"

namespace cistron::dist {
namespace {

void check_part(int parts, int part) { CISTRON_CHECK(part >= 0 && part < parts, "[dist] part {} of {}", part, parts); }

// The legal cut nearest to `row`, for matrices of `matrix` rows.
int64_t nearest_cut(int64_t row, int64_t matrix) {
  const int64_t inside = row % matrix;
  const int64_t low = inside / kShardRows * kShardRows;
  const int64_t high = std::min(low + kShardRows, matrix);
  return row - inside + (inside - low < high - inside ? low : high);
}

}  // namespace

Range even_part(int64_t count, int parts, int part) {
  check_part(parts, part);
  const int64_t least = count / parts, longer = count % parts;
  return {least * part + std::min<int64_t>(part, longer), least + (part < longer ? 1 : 0)};
}

Range experts_of(int64_t experts, int ep, int index) {
  if (ep > experts) {
    throw Error(ErrorKind::kUsage, fmt::format("{} expert-parallel ranks for {} expert{}", ep, experts, experts == 1 ? "" : "s"),
                "parallel.ep", fmt::format("at most {}: use the other ranks for parallel.dp", experts));
  }
  return even_part(experts, ep, index);
}

Range shard_rows(const Shape& shape, int parts, int part) {
  check_part(parts, part);
  CISTRON_CHECK(shape.rank() >= 1, "[dist] a shard of an undefined tensor");
  const int row_dim = std::max(shape.rank() - 2, 0);
  int64_t total = 1;
  for (int dim = 0; dim <= row_dim; ++dim) total = checked_mul(total, shape[dim]);
  if (total == 0) return {};
  const auto cut = [&](int64_t i) { return i == parts ? total : nearest_cut(checked_mul(i, total) / parts, shape[row_dim]); };
  return {cut(part), cut(part + 1) - cut(part)};
}

}  // namespace cistron::dist
