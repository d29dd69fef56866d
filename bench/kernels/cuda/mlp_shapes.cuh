#pragma once
// What the benchmarks of an expert MLP share: shapes, routing, random operands, and the product they are measured against.
#include <cublas_v2.h>

#include <random>
#include <vector>

#include "bench/kernels/cuda/timing.cuh"
#include "tests/cuda/device_tensor.cuh"

namespace cistron::bench {

struct MlpShape {
  const char* name;
  int64_t experts, hidden, intermediate, tokens, top_k;

  [[nodiscard]] int64_t rows() const { return tokens * top_k; }
};
constexpr MlpShape kShapes[] = {{"mixtral-8x7b", 8, 4096, 14336, 8192, 2},
                                {"fine-grained-64", 64, 2048, 1024, 16384, 8},
                                {"fine-grained-128", 128, 2048, 768, 16384, 8},
                                {"progen3-3b", 8, 1280, 3840, 32768, 2}};

inline std::vector<int32_t> uniform_counts(const MlpShape& s) {
  std::vector<int32_t> counts(s.experts, 0);
  std::mt19937 generator(7);
  for (int64_t i = 0; i < s.rows(); ++i) ++counts[generator() % s.experts];
  return counts;
}

inline test::DeviceTensor randoms(const Shape& shape, uint64_t seed, float scale = 1.0F) {
  return test::random_device_tensor(shape, DType::kBF16, {.seed = seed, .scale = scale});
}

/// D: cuBLAS's dense bf16 8192^3 product.
inline Entry dense(cublasHandle_t handle) {
  constexpr int kSize = 8192;
  const test::DeviceTensor a = randoms({kSize, kSize}, 1), b = randoms({kSize, kSize}, 2);
  const test::DeviceTensor c({kSize, kSize}, DType::kBF16);
  return {"D", 2.0 * kSize * kSize * kSize, [=] {
            const float one = 1, zero = 0;
            const auto status = cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, kSize, kSize, kSize, &one, a.get().raw(),
                                             CUDA_R_16BF, kSize, b.get().raw(), CUDA_R_16BF, kSize, &zero, c.get().raw(),
                                             CUDA_R_16BF, kSize, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
            CISTRON_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLAS: {}", static_cast<int>(status));
          }};
}

}  // namespace cistron::bench
