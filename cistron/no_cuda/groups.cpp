#include "cistron/ops/groups.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void one_group(Context& ctx, const ops::OneGroup&) { ops::throw_no_backend("one_group", ctx.device); }
void build_groups(Context& ctx, const ops::BuildGroups&) { ops::throw_no_backend("build_groups", ctx.device); }

}  // namespace cistron::cuda
