#pragma once
// Random MXFP8 operands on the card, made without a quantiser: any element with any scale is valid.
#include "cistron/cuda/verify/device_tensor.cuh"
#include "cistron/ops/mxfp8.h"

namespace cistron::cuda::verify {

struct MxDraw {
  Draw elements{.seed = 1, .scale = 60};
  int smallest_exponent = 118;
  int exponents = 5;
  [[nodiscard]] Draw scales() const {
    return {.seed = elements.seed + 1000, .smallest_exponent = smallest_exponent, .exponents = exponents};
  }
};

/// Of a product's other operand.
inline MxDraw other(MxDraw d) {
  d.elements.seed += 500;
  return d;
}

struct RandomMxOperand {
  DeviceTensor elements, scales;
  ops::MxOperand operand;
};

inline RandomMxOperand random_activation(int64_t rows, int64_t depth, int64_t group, const MxDraw& d) {
  RandomMxOperand r{random_device_tensor({rows, depth}, DType::kU8, d.elements),
                    random_device_tensor({depth / group, round_up(rows, 128)}, DType::kU8, d.scales()),
                    {}};
  r.operand = {.elements = r.elements, .scales = r.scales, .group = group};
  return r;
}

inline RandomMxOperand random_weight(int64_t experts, int64_t rows, int64_t depth, int64_t group, int64_t sections,
                                     const MxDraw& d) {
  const int64_t block = group == 32 ? 96 : 128;
  const int64_t blocks = sections * ceil_div(rows / sections, block);
  RandomMxOperand r{random_device_tensor({experts, rows, depth}, DType::kU8, d.elements),
                    random_device_tensor({experts, blocks, depth / group}, DType::kU8, d.scales()),
                    {}};
  r.operand = {.elements = r.elements, .scales = r.scales, .group = group, .block_rows = block, .sections = sections};
  return r;
}

/// Sets the pad rows of an activation [R, K], or with `transposed` [K, R]: elements and, where they have their own, scales.
inline void set_pad(const ops::MxOperand& x, const TestGroups& g, bool transposed, int byte) {
  if (!transposed) set_pad_rows(x.elements, g, byte);
  const Tensor& t = transposed ? x.elements : x.scales;
  const int64_t pitch = t.dim(1);
  for (size_t e = 0; e < g.counts.size(); ++e) {
    const int64_t from = g.starts[e] + g.counts[e];
    if (g.starts[e + 1] > from)
      CISTRON_CUDA_CHECK(cudaMemset2D(static_cast<char*>(t.raw()) + from, pitch, byte, g.starts[e + 1] - from, t.dim(0)));
  }
}

}  // namespace cistron::cuda::verify
