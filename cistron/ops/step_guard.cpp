#include "cistron/ops/step_guard.h"

#include <cmath>

#include "cistron/core/error.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {

namespace {

void step_guard_on_host(Context& /*ctx*/, const StepGuard& args) {
  StepState& state = *args.state;
  if (state.halted != 0 || !std::isfinite(args.loss.span<double>()[0])) state.finite = 0;
  state.halted = state.finite == 0 ? 1 : 0;
}

}  // namespace

void step_guard(Context& ctx, const StepGuard& args) {
  CISTRON_CHECK(args.state != nullptr, "[step_guard] no state");
  check_tensor("step_guard", "loss", args.loss, {1}, DType::kF64);
  dispatch("step_guard", ctx, args, step_guard_on_host, cuda::step_guard);
}

}  // namespace cistron::ops
