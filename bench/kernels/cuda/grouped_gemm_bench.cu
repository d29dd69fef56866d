// The grouped products at the shapes S1 (E 8, H 4096, F 14336, 16384 rows) and S2 (E 64, H 2048, F 1024, 131072 rows), checked and
// timed in turns with cuBLAS's dense bf16 8192^3 product (D).
//   grouped_gemm_bench [FILTER]     cases whose name contains FILTER
#include <cublas_v2.h>
#include <fmt/format.h>

#include <random>

#include "bench/kernels/cuda/timing.cuh"
#include "cistron/cuda/gemm/sm90_grouped_gemm.h"
#include "tests/cuda/reference.cuh"

namespace cistron::bench {
namespace {

using test::DeviceTensor;
using test::TestGroups;

struct Shape3 {
  const char* name;
  int64_t experts, hidden, intermediate, rows;
  bool even;  // the same rows for each expert
};
constexpr Shape3 kShapes[] = {{"S1", 8, 4096, 14336, 16384, false}, {"S2", 64, 2048, 1024, 131072, false}, {"small", 8, 4096, 14336, 512, true}};

/// Counts of a uniform routing: by chance only.
std::vector<int32_t> uniform_counts(const Shape3& s) {
  std::vector<int32_t> counts(s.experts, s.even ? static_cast<int32_t>(s.rows / s.experts) : 0);
  std::mt19937 generator(7);
  for (int64_t i = 0; i < s.rows && !s.even; ++i) ++counts[generator() % s.experts];
  return counts;
}

Entry dense(cublasHandle_t handle) {
  constexpr int kSize = 8192;
  const DeviceTensor a = test::random_device_tensor({kSize, kSize}, DType::kBF16, {1});
  const DeviceTensor b = test::random_device_tensor({kSize, kSize}, DType::kBF16, {2});
  const DeviceTensor c({kSize, kSize}, DType::kBF16);
  return {"D", 2.0 * kSize * kSize * kSize, [=] {
            const float one = 1;
            const float zero = 0;
            const auto status = cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, kSize, kSize, kSize, &one, a.get().raw(), CUDA_R_16BF, kSize,
                                             b.get().raw(), CUDA_R_16BF, kSize, &zero, c.get().raw(), CUDA_R_16BF, kSize, CUBLAS_COMPUTE_32F,
                                             CUBLAS_GEMM_DEFAULT);
            CISTRON_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLAS: {}", static_cast<int>(status));
          }};
}

struct Bench {
  std::string filter;
  cublasHandle_t handle;
  Context ctx = test::cuda_context();
  Entry d = dense(handle);

  void run(const std::string& name, double work, const std::function<void()>& launch, const test::RefProduct& p, double tolerance) {
    launch();
    const double error = test::deviation(p, 20000).relative();
    d.times.clear();
    std::vector<Entry> entries = {d, {name, work, launch}};
    take_turns(entries, 9);
    fmt::print("{:28} {:8.3f} ms {:7.1f} TFLOP/s  D {:6.1f}  {:5.3f} D  error {:.2e} {}\n", name, entries[1].median_ms(), entries[1].rate(),
               entries[0].rate(), entries[1].rate() / entries[0].rate(), error, error <= tolerance ? "ok" : "WRONG");
    std::fflush(stdout);
  }

  [[nodiscard]] bool wanted(const std::string& name) const { return name.find(filter) != std::string::npos; }

  /// The products of one linear layer with weights [E, n, k].
  void linear(const Shape3& s, const TestGroups& g, const char* layer, const char* dgrad, int64_t n, int64_t k) {
    const double work = 2.0 * static_cast<double>(g.total()) * n * k;
    const std::string prefix = fmt::format("bf16 {} ", s.name);
    if (const std::string name = prefix + layer; wanted(name)) {
      const DeviceTensor w = test::random_device_tensor({s.experts, n, k}, DType::kBF16, {1});
      const DeviceTensor x = test::random_device_tensor({g.rows(), k}, DType::kBF16, {2});
      const DeviceTensor y({g.rows(), n}, DType::kBF16);
      test::RefProduct p = ref_product(test::ref_operand(x), test::ref_operand(w), y, g);
      p.k = k;
      run(name, work, [&] { cuda::sm90::grouped_gemm_forward(ctx, {x, w, g.groups, y}); }, p, 1.8e-3);
    }
    if (const std::string name = prefix + dgrad; wanted(name)) {
      const DeviceTensor w = test::random_device_tensor({s.experts, n, k}, DType::kBF16, {1});
      const DeviceTensor dy = test::random_device_tensor({g.rows(), n}, DType::kBF16, {2});
      const DeviceTensor dx({g.rows(), k}, DType::kBF16);
      test::RefProduct p = ref_product(test::ref_operand(dy), test::ref_operand(w, true), dx, g);
      p.k = n;
      run(name, work, [&] { cuda::sm90::grouped_gemm_dgrad(ctx, {dy, w, g.groups, dx}); }, p, 1.8e-3);
    }
    for (const auto& [kind, dtype, accumulate] : {std::tuple{"f32", DType::kF32, false}, {"bf16", DType::kBF16, false}, {"add", DType::kF32, true}}) {
      const std::string name = fmt::format("{}{} wgrad {}", prefix, layer, kind);
      if (s.even || !wanted(name)) continue;
      const DeviceTensor dy = test::random_device_tensor({g.rows(), n}, DType::kBF16, {1});
      const DeviceTensor x = test::random_device_tensor({g.rows(), k}, DType::kBF16, {2});
      for (const Tensor& t : {dy.get(), x.get()}) test::set_pad_rows(t, g, 0);
      const DeviceTensor dw({s.experts, n, k}, dtype);
      test::zero(dw);
      const test::RefProduct p = ref_product(test::ref_operand(dy, true), test::ref_operand(x, true), dw, g);
      run(name, work, [&, a = accumulate] { cuda::sm90::grouped_gemm_wgrad(ctx, {dy, x, g.groups, dw, a}); }, p,
          dtype == DType::kF32 ? 1e-5 : 1.8e-3);
    }
  }

  void shape(const Shape3& s) {
    const TestGroups g(uniform_counts(s));
    linear(s, g, "fc1", "dgrad of fc1", 2 * s.intermediate, s.hidden);
    linear(s, g, "fc2", "dgrad of fc2", s.hidden, s.intermediate);
  }
};

}  // namespace
}  // namespace cistron::bench

int main(int argc, char** argv) {
  cublasHandle_t handle = nullptr;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 1;
  cistron::bench::Bench bench{argc > 1 ? argv[1] : "", handle};
  for (const auto& shape : cistron::bench::kShapes) bench.shape(shape);
  return 0;
}
