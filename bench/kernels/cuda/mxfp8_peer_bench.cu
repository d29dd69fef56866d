// MXFP8 products with groups of 128 in turns with cuBLASLt's block-scaled ones (1 x 128 by 128 x 128), expert by expert, at the
// shapes S1 (E 8, H 4096, F 14336, 16384 rows) and S2 (E 64, H 2048, F 1024, 131072 rows). Scales of the peer are decoded
// beforehand.
#include <fmt/format.h>

#include <random>

#include "bench/kernels/cuda/cublaslt.cuh"
#include "bench/kernels/cuda/timing.cuh"
#include "cistron/ops/mxfp8_grouped_gemm.h"
#include "tests/cuda/mx_operands.cuh"
#include "tests/cuda/reference.cuh"

namespace cistron::bench {
namespace {

using test::DeviceTensor;

struct Bench {
  Context ctx = test::cuda_context();
  CublasLt lt;
  DeviceTensor a = test::random_device_tensor({8192, 8192}, DType::kBF16, {1});
  DeviceTensor b = test::random_device_tensor({8192, 8192}, DType::kBF16, {2});
  DeviceTensor c{{8192, 8192}, DType::kBF16};
  LtPlan dense{lt, {.a = a.get().raw(), .b = b.get().raw(), .out = c.get().raw(), .m = 8192, .n = 8192, .k = 8192}};
  bool wrong = false;

  void product(const char* name, const test::TestGroups& g, int64_t n, int64_t k) {
    const auto x = test::random_activation(g.rows(), k, 128, {});
    const auto w = test::random_weight(std::ssize(g.counts), n, k, 128, 1, test::other({}));
    const DeviceTensor out({g.rows(), n}, DType::kBF16);
    const BlockScales scales(x.operand, w.operand, g);
    const auto products = expert_products(lt, x.operand, w.operand, scales, out, g);
    const double work = 2.0 * static_cast<double>(g.total()) * static_cast<double>(n) * static_cast<double>(k);
    std::vector<Entry> entries = {
        {"ours", work, [&] { ops::mxfp8_grouped_gemm(ctx, {.x = x.operand, .w = w.operand, .groups = g.groups, .out = out}); }},
        {"cublasLt loop", work,
         [&] {
           for (const LtPlan& p : products) p.run(nullptr);
         }},
        {"D", 2.0 * 8192 * 8192 * 8192, [&] { dense.run(nullptr); }}};
    double errors[2];
    for (int i = 0; i < 2; ++i) {
      test::zero(out);
      entries[i].launch();
      test::RefProduct p = ref_product(test::ref_operand(x.operand), test::ref_operand(w.operand), out, g);
      p.k = k;
      errors[i] = test::deviation(p, 20000).relative();
      wrong |= !(errors[i] <= 6e-4 + 1.7e-3);
    }
    take_turns(entries, 9);
    for (int i = 0; i < 2; ++i)
      fmt::print("mxfp8/128 {:20} {:14} {:8.3f} ms {:7.1f} TFLOP/s  D {:6.1f}  {:5.3f} D  error {:.1e}\n", name, entries[i].name,
                 entries[i].median_ms(), entries[i].rate(), entries[2].rate(), entries[i].rate() / entries[2].rate(), errors[i]);
    std::fflush(stdout);
  }

  void shape(const std::string& name, int64_t experts, int64_t h, int64_t f, int64_t rows) {
    std::vector<int32_t> counts(static_cast<size_t>(experts));
    std::mt19937 generator(7);
    for (int64_t i = 0; i < rows; ++i) ++counts[generator() % counts.size()];
    const test::TestGroups g(counts);
    product((name + " fc1").c_str(), g, 2 * f, h);
    product((name + " fc2").c_str(), g, h, f);
    product((name + " dgrad of fc2").c_str(), g, f, h);
    product((name + " dgrad of fc1").c_str(), g, h, 2 * f);
  }
};

}  // namespace
}  // namespace cistron::bench

int main() {
  cistron::bench::Bench bench;
  bench.shape("S1", 8, 4096, 14336, 16384);
  bench.shape("S2", 64, 2048, 1024, 131072);
  return bench.wrong ? 1 : 0;
}
