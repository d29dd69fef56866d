#include "cistron/ops/matmul.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void matmul_forward(Context& ctx, const ops::MatmulForward&) { ops::throw_no_backend("matmul_forward", ctx.device); }
void matmul_dgrad(Context& ctx, const ops::MatmulDgrad&) { ops::throw_no_backend("matmul_dgrad", ctx.device); }
void matmul_wgrad(Context& ctx, const ops::MatmulWgrad&) { ops::throw_no_backend("matmul_wgrad", ctx.device); }

}  // namespace cistron::cuda
