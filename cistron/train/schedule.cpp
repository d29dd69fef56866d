#include "cistron/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace cistron::train {

double LearningRate::at(int64_t step) const {
  const auto s = static_cast<double>(step), n = static_cast<double>(steps), w = static_cast<double>(warmup);
  if (step <= warmup) return peak * s / w;
  if (schedule == Schedule::kCosine) {
    const double progress = std::clamp((s - w) / std::max(n - w, 1.0), 0.0, 1.0);
    return peak * (final_share + (1 - final_share) * (1 + std::cos(std::numbers::pi * progress)) / 2);
  }
  if (schedule == Schedule::kWsd) {
    const double length = decay_share * n, left = std::max(n - s, 0.0);
    if (left < length) return peak * (1 - (1 - final_share) * std::sqrt(1 - left / length));
  }
  return peak;
}

}  // namespace cistron::train
