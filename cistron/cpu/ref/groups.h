#pragma once
#include "cistron/core/checked.h"
#include "cistron/cpu/ref/matrix.h"

namespace cistron::cpu::ref {

struct Groups {
  std::vector<int32_t> starts, counts, source_row;
  Matrix<int32_t> token_rows;
};

/// Expert by expert from the first on, token by token.
inline Groups build_groups(const Matrix<int32_t>& experts, int64_t num_experts, int64_t alignment, int32_t first_expert = 0) {
  Groups groups;
  groups.token_rows = Matrix<int32_t>(experts.rows, experts.cols);
  for (int32_t& row : groups.token_rows.data) row = -1;
  groups.starts.push_back(0);
  for (int32_t e = 0; e < num_experts; ++e) {
    const auto start = static_cast<int64_t>(groups.source_row.size());
    for (int64_t t = 0; t < experts.rows; ++t)
      for (int64_t j = 0; j < experts.cols; ++j) {
        if (experts(t, j) != first_expert + e) continue;
        groups.token_rows(t, j) = static_cast<int32_t>(groups.source_row.size());
        groups.source_row.push_back(static_cast<int32_t>(t));
      }
    const int64_t end = static_cast<int64_t>(groups.source_row.size());
    groups.counts.push_back(static_cast<int32_t>(end - start));
    groups.source_row.resize(static_cast<size_t>(round_up(end, alignment)), -1);
    groups.starts.push_back(static_cast<int32_t>(groups.source_row.size()));
  }
  return groups;
}

}  // namespace cistron::cpu::ref
