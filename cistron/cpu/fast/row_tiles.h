#pragma once
#include <vector>

#include "cistron/cpu/fast/products.h"
#include "cistron/ops/groups.h"

namespace cistron::cpu {

struct RowTile {
  int64_t expert;
  Range rows;
  int64_t packed;  // its first row in a packed tensor
};

/// The tiles of all experts' rows in one list, so that one parallel loop balances them.
inline std::vector<RowTile> row_tiles(const ops::Groups& groups) {
  const int32_t* starts = groups.starts.data<int32_t>();
  const int32_t* counts = groups.counts.data<int32_t>();
  std::vector<RowTile> tiles;
  int64_t packed = 0;
  for (int64_t e = 0; e < groups.num_experts(); packed += counts[e++])
    for (int64_t row = 0; row < counts[e]; row += kRowTile)
      tiles.push_back({e, {starts[e] + row, std::min(kRowTile, counts[e] - row)}, packed + row});
  return tiles;
}

inline std::byte* offset(const Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(tensor.raw()) + element * size_of(tensor.dtype());
}

}  // namespace cistron::cpu
