#include "cistron/ops/router.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void router_forward(Context& ctx, const ops::RouterForward&) { ops::throw_no_backend("router_forward", ctx.device); }
void router_stats(Context& ctx, const ops::RouterStats&) { ops::throw_no_backend("router_stats", ctx.device); }
void router_backward(Context& ctx, const ops::RouterBackward&) { ops::throw_no_backend("router_backward", ctx.device); }

}  // namespace cistron::cuda
