#include "cistron/cuda/doctor.h"
#include "cistron/cuda/gemm/cublaslt.h"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {
namespace {

Card card(int index) {
  cudaDeviceProp properties{};
  CISTRON_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  const DeviceGuard guard(index);
  size_t free = 0;
  size_t total = 0;
  CISTRON_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return {.name = properties.name,
          .capability = 10 * properties.major + properties.minor,
          .multiprocessors = properties.multiProcessorCount,
          .memory_bytes = static_cast<int64_t>(total),
          .free_bytes = static_cast<int64_t>(free)};
}

}  // namespace

CardSurvey survey_cards() {
  CardSurvey survey{.built = true};
  int count = 0;
  try {
    CISTRON_CUDA_CHECK(cudaRuntimeGetVersion(&survey.runtime_version));
    CISTRON_CUDA_CHECK(cudaDriverGetVersion(&survey.driver_version));
    CISTRON_CUDA_CHECK(cudaGetDeviceCount(&count));
    for (int i = 0; i < count; ++i) survey.cards.push_back(card(i));
  } catch (const CudaError& error) {
    survey.problem = cudaGetErrorString(error.code());
  }
  survey.libraries.push_back({.name = "cuBLASLt",
                              .found_for = "it runs the dense products",
                              .instead = "our own kernels run the dense products, slower",
                              .problem = cublaslt::problem()});
  return survey;
}

}  // namespace cistron::cuda
