#pragma once
// The layer of experts by itself, from a loop over experts to the fused grouped MLP: what each step of the way gains.
// Routing is given (each token's experts by chance, all different); making `Groups` of it counts with forward; weights are
// quantised before, since a training step does that once, after its update.
#include <string>
#include <vector>

#include "apps/bench_profile.h"
#include "cistron/core/context.h"

namespace cistron::apps {

struct MoeShape {
  int64_t hidden = 0, intermediate = 0, experts = 0, top_k = 0, tokens = 0;

  /// Of the products: 6 T k H F forward, twice that backward.
  [[nodiscard]] double forward_flops() const;
};

/// A way to compute the layer.
struct Rung {
  std::string variant;  ///< "loop", "grouped", "fused", "fused biased"
  std::string recipe;   ///< "fp32", "bf16", "mxfp8/128"
  Precision precision = Precision::kF32;
  bool loop = false, fuse = false;
  bool biases = false;  ///< both linears have them, the second's times the routing weights
};

struct RungTime {
  Rung rung;
  std::string refusal;  ///< why it was not run; the rest is then zero
  double forward_milliseconds = 0.0, backward_milliseconds = 0.0;
  int64_t saved_bytes = 0;  ///< kept between forward and backward beside the layer's input
  int64_t launches = 0;     ///< kernels, forward and backward; 0: not known (a CPU; the loop, which cannot be recorded)
  int64_t host_syncs = 0;   ///< places where the host waits for the device
};

struct Ladder {
  std::vector<RungTime> rungs;
  double dense_tflops = 0.0;  ///< D, of the same turns; 0 on a CPU
};

/// The naive loop first. Without `ablate` the last rung of each recipe alone. With `biases` each but the loop once more with
/// them, right behind. On a CPU without bf16 products: in fp32.
std::vector<Rung> rungs_of(const Device& device, bool ablate, bool biases = false);

/// Medians of `turns`; in each turn every rung, and on a card D before each, which evicts the cache and keeps the card as warm as
/// training does.
Ladder climb(const Device& device, ThreadPool& pool, const MoeShape& shape, const std::vector<Rung>& rungs, int turns);

}  // namespace cistron::apps
