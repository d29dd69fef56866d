#pragma once
// Memory that an operation takes for itself while it runs. It is taken where arguments are checked, so that a run on the meta
// device plans for it.
#include "cistron/core/context.h"

namespace cistron::ops {

/// What the CUDA kernels need and the CPU's don't: undefined where the CPU runs.
inline Tensor cuda_scratch(const Context& ctx, const Shape& shape, DType dtype) {
  return ctx.target().is_cuda() ? ctx.empty(shape, dtype) : Tensor{};
}

/// CUDA's counting sort takes [kSortTiles, bins] i32, up to so many bins.
constexpr int64_t kSortTiles = 128;
constexpr int64_t kMaxSortBins = 512;

}  // namespace cistron::ops
