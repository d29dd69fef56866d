#pragma once
// Descriptors of the bulk tensor copy engine (TMA), sm_90 and later: boxes of a row-major array [outermost, rows, columns], with
// rows of 128 bytes in shared memory, swizzled. Elements outside the array read as zero and are not written.
#include <cuda.h>

#include <cstdint>

#include "cistron/core/dtype.h"

namespace cistron::cuda {

struct TensorMapShape {
  void* data = nullptr;  // 16-byte aligned
  DType dtype = DType::kBF16;
  int64_t columns = 0;  // contiguous; whole rows are multiples of 16 bytes
  int64_t rows = 0;
  int64_t outermost = 1;
  int box_rows = 64;        // a box is box_rows x 128 bytes
  int64_t row_pitch = 0;    // elements from a row to the next; 0: columns
  int64_t outer_pitch = 0;  // and along the outermost dim; 0: rows x columns
};

/// Throws when the driver has no tensor maps, or refuses this one.
CUtensorMap make_tensor_map(const TensorMapShape& shape);

}  // namespace cistron::cuda
