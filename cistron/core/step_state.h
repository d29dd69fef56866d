#pragma once
#include <cstdint>

namespace cistron {

/// What changes from step to step. It lies in device memory and kernels take a pointer to it, so that a captured step replays
/// unchanged while its numbers move on.
struct StepState {
  // The host's: set before each step.
  int64_t step = 0;  ///< counts from 1 inside the first step
  float learning_rate = 0.0F;
  float bias_correction1 = 1.0F;  ///< 1 - beta1^step
  float bias_correction2 = 1.0F;
  float loss_scale = 1.0F;  ///< 1 / (weighted tokens of the global batch)
  float clip_norm = 0.0F;   ///< 0: no clipping
  // The device's.
  float grad_norm = 0.0F;    ///< written by ops::grad_norm
  float clip_factor = 1.0F;  ///< written by ops::grad_norm; multiplies every gradient
  int32_t finite = 1;        ///< written by ops::grad_norm and ops::step_guard; 0 makes the optimizer do nothing
  int32_t halted = 0;        ///< some step was not finite; written by ops::step_guard
};

}  // namespace cistron
