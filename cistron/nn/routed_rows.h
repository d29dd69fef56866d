#pragma once
#include "cistron/core/context.h"
#include "cistron/ops/gather.h"

namespace cistron::nn {

/// Token order to expert order: [T, H] -> [R, H].
inline Tensor gathered(Context& ctx, const Tensor& x, const ops::Groups& groups) {
  Tensor rows = ctx.empty({groups.max_rows(), x.dim(1)}, x.dtype());
  ops::gather(ctx, {.x = x, .groups = groups, .out = rows});
  return rows;
}

/// And back, summing a token's rows: [R, H] -> [T, H].
inline Tensor combined(Context& ctx, const Tensor& rows, const ops::Groups& groups) {
  Tensor tokens = ctx.empty({groups.num_tokens(), rows.dim(1)}, rows.dtype());
  ops::combine(ctx, {.x = rows, .groups = groups, .out = tokens});
  return tokens;
}

}  // namespace cistron::nn
