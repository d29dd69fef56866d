#pragma once
#include "cistron/core/context.h"
#include "cistron/model/config.h"

namespace cistron::model {

/// Which weights are in MXFP8 where the recipe says so: the experts', and those of attention's projections.
struct Mxfp8Layers {
  int64_t bf16_first = 0, bf16_last = 0;  ///< so many layers at either end stay in bf16
  bool attention = true;

  [[nodiscard]] bool experts_of(int64_t layer, int64_t layers) const { return layer >= bf16_first && layer < layers - bf16_last; }
};

/// Throws Error(kUsage), naming `where`, unless `device` has the products of this model in that recipe.
void check_mxfp8(const ModelConfig& config, const Mxfp8Layers& layers, Precision precision, const Device& device,
                 std::string_view where);

}  // namespace cistron::model
