#include "cistron/ops/gather.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void gather(Context& ctx, const ops::Gather&) { ops::throw_no_backend("gather", ctx.device); }
void combine(Context& ctx, const ops::Combine&) { ops::throw_no_backend("combine", ctx.device); }
void gather_choices(Context& ctx, const ops::GatherChoices&) { ops::throw_no_backend("gather_choices", ctx.device); }

}  // namespace cistron::cuda
