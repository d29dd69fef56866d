#pragma once
#include <cstdint>
#include <string>

#include "cistron/core/dtype.h"
#include "cistron/core/shape.h"

namespace cistron {

/// How a parameter starts.
enum class Init : uint8_t { kNormal, kOnes };

/// A trainable array by its global identity. It owns no storage: `Context::weights` lends the values, `Context::grad` takes the
/// gradient. The same name and global shape mean the same parameter in every layout and in every checkpoint.
struct Parameter {
  std::string name;           ///< "layers.3.moe.gate_up"; unique in a model
  Shape shape;                ///< of the whole parameter
  Init init = Init::kNormal;  ///< kNormal: mean 0, deviation `init_std`
  float init_std = 0.02F;
  bool decay = true;        ///< weight decay; not on norms and biases
  bool keep_f32 = false;    ///< used in fp32 whatever the recipe: norms, the router
  int64_t mx_sections = 0;  ///< its products run in MXFP8 where the recipe says so (`MxOperand::sections`); 0: never
  int64_t begin = 0;        ///< this rank holds rows [begin, begin + count) of dim 0
  int64_t count = -1;       ///< -1: all of them

  /// The shape of this rank's part.
  [[nodiscard]] Shape local_shape() const {
    Shape local = shape;
    if (count >= 0) local.set(0, count);
    return local;
  }
};

}  // namespace cistron
