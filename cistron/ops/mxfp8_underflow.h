#pragma once
// What MXFP8 loses at its small end, counted from an operand's bytes on the host: for looking, not for training.
#include "cistron/core/context.h"

namespace cistron::ops {

/// Elements of blocks that are not all zeros, as those of pad rows are. Subnormal: 0 < |element| < 2^-6, with fewer than four
/// significant bits. Zero: what was at most 2^-10 scales, zeros too.
struct Mxfp8Underflow {
  int64_t elements = 0, subnormal = 0, zero = 0;
  Mxfp8Underflow& operator+=(const Mxfp8Underflow& other);
  friend bool operator==(const Mxfp8Underflow&, const Mxfp8Underflow&) = default;
};

/// On any device; waits for it. With `starts` ([E + 1] i32, `Groups::starts`) rows from starts[E] on don't count.
Mxfp8Underflow mxfp8_underflow(Context& ctx, const MxOperand& x, const Tensor& starts = {});

}  // namespace cistron::ops
