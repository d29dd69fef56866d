#pragma once
#include <cstdint>

namespace cistron::train {

enum class Schedule : uint8_t { kConstant, kCosine, kWsd };

/// The learning rate as a pure function of the step, so that a resumed run needs no state. Steps count from 1; N steps in all, W
/// of warm-up, p = (step - W) / (N - W), f = final_share:
///   step <= W:  peak step / W
///   cosine:     peak (f + (1 - f) (1 + cos(pi p)) / 2)         Loshchilov & Hutter, "SGDR" (2017)
///   wsd:        peak until the last D = decay_share N steps, then peak (1 - (1 - f) sqrt(1 - (N - step) / D)): Hägele et al.,
///   "Scaling
///               laws and compute-optimal training beyond fixed training durations" (2024)
///   constant:   peak
struct LearningRate {
  Schedule schedule = Schedule::kCosine;
  double peak = 1e-3;
  int64_t steps = 0;
  int64_t warmup = 0;
  double final_share = 0.1;
  double decay_share = 0.2;

  [[nodiscard]] double at(int64_t step) const;
};

}  // namespace cistron::train
