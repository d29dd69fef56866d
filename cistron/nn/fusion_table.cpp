#include <array>

#include "cistron/nn/fused_mlp.h"

namespace cistron::nn {

std::span<const Fusion> fusion_table() {
  static const std::array table{fused_mlp()};
  return table;
}

}  // namespace cistron::nn
