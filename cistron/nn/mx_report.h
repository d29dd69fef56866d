#pragma once
#include <string_view>
#include <vector>

#include "cistron/core/context.h"
#include "cistron/ops/groups.h"
#include "cistron/ops/mxfp8_underflow.h"

namespace cistron::nn {

constexpr std::string_view kMxActivations = "mxfp8 activations", kMxGradients = "mxfp8 gradients";

/// Tells an observer what was lost of an operand: [3] i64 in host memory, as Mxfp8Underflow has them.
inline void report_underflow(Context& ctx, std::string_view kind, const MxOperand& x, const ops::Groups& groups) {
  if (!ctx.observe) return;
  const auto lost = ops::mxfp8_underflow(ctx, x, groups.starts);
  std::vector counts{lost.elements, lost.subnormal, lost.zero};
  ctx.report(kind, Tensor::view(std::span(counts)));
}

}  // namespace cistron::nn
