#pragma once
#include <string>

#include "cistron/train/engine.h"

namespace cistron::train {

/// Advice for a plan that needs more than `available` bytes: the smallest change of the configuration that fits, found by
/// planning it.
std::string what_would_fit(EngineOptions options, int64_t available);

}  // namespace cistron::train
