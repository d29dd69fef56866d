#include <array>

#include "cistron/nn/fused_mlp.h"
#include "cistron/nn/fused_mx_mlp.h"

namespace cistron::nn {

std::span<const Fusion> fusion_table() {
  static const std::array table{fused_mlp(), fused_mx_mlp()};
  return table;
}

}  // namespace cistron::nn
