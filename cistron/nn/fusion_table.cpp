#include <array>

#include "cistron/nn/fused_mlp.h"
#include "cistron/nn/fused_mx_mlp.h"
#include "cistron/nn/fused_norm.h"

namespace cistron::nn {

std::span<const Fusion> fusion_table() {
  static const std::array table{fused_mlp(), fused_mx_mlp(), fused_norm_quantize(), fused_norm()};
  return table;
}

}  // namespace cistron::nn
