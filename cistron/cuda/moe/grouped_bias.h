#pragma once
#include "cistron/ops/grouped_bias.h"

namespace cistron::cuda {

/// y[r, :] += s[r] bias[e], in place: for products that don't add it themselves, whose sum is so rounded twice.
void add_grouped_bias(Context& ctx, const ops::ExpertBias& bias, const ops::Groups& groups, const Tensor& y);

/// dbias[e] = (or +=) the sum over the tiles of 128 rows of expert e, first to last, of their lines of partials: i-th of e's is
/// line starts[e] / 128 + e + i.
void sum_bias_tiles(const Context& ctx, const Tensor& partials, const ops::Groups& groups, const GradSink& dbias);

}  // namespace cistron::cuda
