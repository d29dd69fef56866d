#pragma once
// Checks that operations share beside `check_tensor`.
#include "cistron/core/error.h"
#include "cistron/core/tensor.h"

namespace cistron::ops {

/// f32 or bf16 of this rank.
inline void check_float(const char* op, const char* what, const Tensor& tensor, int rank) {
  CISTRON_CHECK(tensor.shape().rank() == rank && (tensor.dtype() == DType::kF32 || tensor.dtype() == DType::kBF16),
                "[{}] {} is {} {}, wanted {} dims of f32 or bf16", op, what, to_string(tensor.shape()), name_of(tensor.dtype()),
                rank);
}

}  // namespace cistron::ops
