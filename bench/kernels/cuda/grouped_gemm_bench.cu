// The grouped products at the shapes S1 (E 8, H 4096, F 14336, 16384 rows) and S2 (E 64, H 2048, F 1024, 131072 rows), checked
// and timed in turns with cuBLAS's dense bf16 8192^3 product (D).
//   grouped_gemm_bench [FILTER]     cases whose name contains FILTER
#include <cublas_v2.h>
#include <fmt/format.h>

#include <random>

#include "bench/kernels/cuda/timing.cuh"
#include "cistron/cuda/gemm/sm90_grouped_gemm.h"
#include "tests/cuda/mx_operands.cuh"
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
constexpr Shape3 kShapes[] = {
    {"S1", 8, 4096, 14336, 16384, false}, {"S2", 64, 2048, 1024, 131072, false}, {"small", 8, 4096, 14336, 512, true}};

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
            const auto status = cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, kSize, kSize, kSize, &one, a.get().raw(),
                                             CUDA_R_16BF, kSize, b.get().raw(), CUDA_R_16BF, kSize, &zero, c.get().raw(),
                                             CUDA_R_16BF, kSize, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
            CISTRON_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLAS: {}", static_cast<int>(status));
          }};
}

struct Bench {
  std::string filter;
  cublasHandle_t handle;
  Context ctx = test::cuda_context();
  Entry d = dense(handle);
  bool wrong = false;  // any product

  void run(const std::string& name, double work, const std::function<void()>& launch, const test::RefProduct& p,
           double tolerance) {
    launch();
    const double error = test::deviation(p, 20000).relative();
    const bool ok = error <= tolerance;
    wrong |= !ok;
    d.times.clear();
    std::vector<Entry> entries = {d, {name, work, launch}};
    take_turns(entries, 9);
    fmt::print("{:28} {:8.3f} ms {:7.1f} TFLOP/s  D {:6.1f}  {:5.3f} D  error {:.2e} {}\n", name, entries[1].median_ms(),
               entries[1].rate(), entries[0].rate(), entries[1].rate() / entries[0].rate(), error, ok ? "ok" : "WRONG");
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
    for (const auto& [kind, dtype, accumulate] :
         {std::tuple{"f32", DType::kF32, false}, {"bf16", DType::kBF16, false}, {"add", DType::kF32, true}}) {
      const std::string name = fmt::format("{}{} wgrad {}", prefix, layer, kind);
      if (s.even || !wanted(name)) continue;
      const DeviceTensor dy = test::random_device_tensor({g.rows(), n}, DType::kBF16, {1});
      const DeviceTensor x = test::random_device_tensor({g.rows(), k}, DType::kBF16, {2});
      for (const Tensor& t : {dy.get(), x.get()}) test::set_pad_rows(t, g, 0);
      const DeviceTensor dw({s.experts, n, k}, dtype);
      test::zero(dw);
      const test::RefProduct p = ref_product(test::ref_operand(dy, true), test::ref_operand(x, true), dw, g);
      run(
          name, work, [&, a = accumulate] { cuda::sm90::grouped_gemm_wgrad(ctx, {dy, x, g.groups, dw, a}); }, p,
          dtype == DType::kF32 ? 1e-5 : 1.8e-3);
    }
  }

  /// out [R, n] = x [R, k] w[e]^T in MXFP8: the forward product, and dgrad with the transposed copy of the weight.
  void mxfp8(const Shape3& s, const TestGroups& g, const std::string& product, int64_t n, int64_t k, int64_t group,
             int64_t sections) {
    const std::string name = fmt::format("mxfp8/{} {} {}", group, s.name, product);
    if (!wanted(name)) return;
    const auto x = test::random_activation(g.rows(), k, group, {});
    const auto w = test::random_weight(s.experts, n, k, group, sections, test::other({}));
    const DeviceTensor out({g.rows(), n}, DType::kBF16);
    test::RefProduct p = ref_product(test::ref_operand(x.operand), test::ref_operand(w.operand), out, g);
    p.k = k;
    run(
        name, 2.0 * static_cast<double>(g.total()) * n * k,
        [&] { cuda::sm90::mxfp8_grouped_gemm(ctx, {x.operand, w.operand, g.groups, out}); }, p, 6e-4 + 1.7e-3);
  }

  /// dw [E, n, k] = dy [n, R] x [k, R]^T over each expert's rows.
  void mxfp8_wgrad(const Shape3& s, const TestGroups& g, const char* layer, int64_t n, int64_t k, bool accumulate) {
    const std::string name = fmt::format("mxfp8/128 {} {} wgrad {}", s.name, layer, accumulate ? "add" : "f32");
    if (s.even || !wanted(name)) return;
    const auto dy = test::random_activation(n, g.rows(), 128, {});
    const auto x = test::random_activation(k, g.rows(), 128, test::other({}));
    for (const auto& operand : {dy.operand, x.operand}) test::set_pad(operand, g, true, 0);
    const DeviceTensor dw({s.experts, n, k}, DType::kF32);
    test::zero(dw);
    const test::RefProduct p = ref_product(test::ref_operand(dy.operand), test::ref_operand(x.operand), dw, g);
    run(
        name, 2.0 * static_cast<double>(g.total()) * n * k,
        [&] { cuda::sm90::mxfp8_grouped_wgrad(ctx, {dy.operand, x.operand, g.groups, dw, accumulate}); }, p, 6e-4);
  }

  void shape_mxfp8(const Shape3& s, const TestGroups& g) {
    const int64_t h = s.hidden;
    const int64_t f = s.intermediate;
    for (const int64_t group : {128, 32}) {
      mxfp8(s, g, "fc1", 2 * f, h, group, 2);
      mxfp8(s, g, "fc2", h, f, group, 1);
      mxfp8(s, g, "dgrad of fc2", f, h, group, 1);
      mxfp8(s, g, "dgrad of fc1", h, 2 * f, group, 1);
    }
    for (const bool accumulate : {false, true}) {
      mxfp8_wgrad(s, g, "fc1", 2 * f, h, accumulate);
      mxfp8_wgrad(s, g, "fc2", h, f, accumulate);
    }
  }

  void shape(const Shape3& s) {
    const TestGroups g(uniform_counts(s));
    linear(s, g, "fc1", "dgrad of fc1", 2 * s.intermediate, s.hidden);
    linear(s, g, "fc2", "dgrad of fc2", s.hidden, s.intermediate);
    shape_mxfp8(s, g);
  }
};

}  // namespace
}  // namespace cistron::bench

int main(int argc, char** argv) {
  cublasHandle_t handle = nullptr;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 1;
  cistron::bench::Bench bench{argc > 1 ? argv[1] : "", handle};
  for (const auto& shape : cistron::bench::kShapes) bench.shape(shape);
  return bench.wrong ? 1 : 0;
}
