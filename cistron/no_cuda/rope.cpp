#include "cistron/ops/attention.h"
#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void rope(Context& ctx, const ops::Rope&) { ops::throw_no_backend("rope", ctx.device); }

}  // namespace cistron::cuda
