#pragma once
// A step whose numbers are not finite updates nothing, nor does any step after it until the host has looked.
#include "cistron/core/context.h"
#include "cistron/core/step_state.h"

namespace cistron::ops {

/// finite = finite and isfinite(loss) and not halted; halted = not finite. Between ops::grad_norm and the optimizer.
struct StepGuard {
  const Tensor& loss;  // [1] f64
  StepState* state;
};
void step_guard(Context& ctx, const StepGuard& args);

}  // namespace cistron::ops

namespace cistron::cuda {
void step_guard(Context& ctx, const ops::StepGuard& args);
}  // namespace cistron::cuda
