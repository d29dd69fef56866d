#include "cistron/core/error.h"
#include "cistron/cuda/bench/kernels.h"

namespace cistron::cuda {

void bench_kernels(const KernelBench&, const std::function<void(const KernelTime&)>&) {
  throw Error(ErrorKind::kUsage, "bench kernels times CUDA kernels", "this build has no CUDA backend",
              "build with make build-cuda; for a processor's kernels, kernel_benchmarks (CONTRIBUTING.md)");
}

}  // namespace cistron::cuda
