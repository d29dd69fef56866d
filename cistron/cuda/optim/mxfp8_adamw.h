#pragma once
#include "cistron/ops/optimizer.h"

namespace cistron::cuda {

/// Whether one pass updates and quantises it.
inline bool quantized_in_update(const ops::AdamWTensor& tensor) {
  return tensor.mx.rows.defined() && tensor.mx.rows.group == 128;
}
/// `ops::adamw` of those tensors.
void mxfp8_adamw(Context& ctx, const ops::AdamW& args);

}  // namespace cistron::cuda
