#include "cistron/core/mx_tensor.h"

#include "cistron/core/checked.h"

namespace cistron {

int64_t MxOperand::row_blocks() const { return sections * ceil_div(div_exact(rows(), sections), block_rows); }

int64_t MxOperand::scale_index(int64_t e, int64_t r, int64_t k) const {
  if (!is_weight()) return (k / group) * scales.dim(1) + r;
  const int64_t section_rows = rows() / sections;
  const int64_t block = (r / section_rows) * ceil_div(section_rows, block_rows) + (r % section_rows) / block_rows;
  return (e * row_blocks() + block) * num_groups() + k / group;
}

}  // namespace cistron
