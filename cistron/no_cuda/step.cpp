#include "cistron/ops/dispatch.h"
#include "cistron/ops/publish.h"
#include "cistron/ops/queue.h"
#include "cistron/ops/step_guard.h"
#include "cistron/ops/timer.h"

namespace cistron::cuda {

std::unique_ptr<ops::Queue> make_queue(const Device& device) { ops::throw_no_backend("queue", device); }
std::unique_ptr<ops::DeviceTimer> make_timer(const Context& ctx) { ops::throw_no_backend("timer", ctx.device); }
void publish(Context& ctx, const ops::Publish&) { ops::throw_no_backend("publish", ctx.device); }
void step_guard(Context& ctx, const ops::StepGuard&) { ops::throw_no_backend("step_guard", ctx.device); }

}  // namespace cistron::cuda
