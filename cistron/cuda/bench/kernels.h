#pragma once
// The kernels of `cistron bench kernels` on one card, alone: the grouped products of an expert MLP and the MXFP8 quantisers. Each
// result is compared with float64 on samples first; then kernel, peers and the ceiling take turns on random data, so that a card
// that throttles treats all alike. Ceilings: D, cuBLASLt's dense bf16 product of 8192^3, for products; C, the device's copy, for
// bytes. Operands are larger than the L2 cache, or what runs in between evicts them.
#include <functional>
#include <string>

#include "cistron/core/context.h"

namespace cistron::cuda {

struct KernelBench {
  int64_t hidden = 4096, intermediate = 14336, experts = 8;
  int64_t rows = 16384;  ///< routed: tokens x top-k; spread over the experts by chance
  std::string only;      ///< kernels whose "recipe name" contains this; all of them where it is empty
  GemmKernels gemm = GemmKernels::kAuto;
  int turns = 9;  ///< of which the median counts
};

struct KernelTime {
  std::string name;     ///< "fc1", "dgrad of fc1", "wgrad of fc1", "quantise rows and columns", ...
  std::string recipe;   ///< "bf16", "mxfp8/128", "mxfp8/32"
  std::string variant;  ///< "sm90" or "portable" (ours), "cublaslt loop": cuBLASLt, expert by expert
  double milliseconds = 0;
  double rate = 0;  ///< TFLOP/s, or GB/s
  bool moves_bytes = false;
  double ceiling = 0;  ///< D or C, of the same turns; 0 where it cannot be measured
  double error = 0;    ///< relative, of the sampled outputs
  bool right = true;   ///< the error is within the recipe's tolerance
};

/// Calls `report` for each as it comes. Throws Error(kUsage) where there is no card.
void bench_kernels(const KernelBench& options, const std::function<void(const KernelTime&)>& report);

}  // namespace cistron::cuda
