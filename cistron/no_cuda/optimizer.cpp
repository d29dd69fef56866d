#include "cistron/ops/optimizer.h"

#include "cistron/ops/dispatch.h"

namespace cistron::cuda {

void grad_norm(Context& ctx, const ops::GradNorm&) { ops::throw_no_backend("grad_norm", ctx.device); }
void sum_of_squares(Context& ctx, const ops::SumOfSquares&) { ops::throw_no_backend("sum_of_squares", ctx.device); }
void norm_of_squares(Context& ctx, const ops::NormOfSquares&) { ops::throw_no_backend("norm_of_squares", ctx.device); }
void adamw(Context& ctx, const ops::AdamW&) { ops::throw_no_backend("adamw", ctx.device); }

}  // namespace cistron::cuda
