// The products beside SwiGLU against the same products alone, and cuBLAS's dense bf16 8192^3 product (D), in turns.
//   grouped_swiglu_bench
#include <fmt/format.h>

#include "bench/kernels/cuda/mlp_shapes.cuh"
#include "bench/kernels/cuda/timing.cuh"
#include "cistron/cuda/gemm/sm90_grouped_gemm.h"
#include "cistron/ops/grouped_swiglu.h"
#include "tests/cuda/device_tensor.cuh"

namespace cistron::bench {
namespace {

using test::DeviceTensor;

void shape(const MlpShape& s, const Entry& d) {
  Context ctx = test::cuda_context();
  ctx.precision = Precision::kBF16;
  test::TestGroups g(uniform_counts(s));
  const int64_t rows = g.rows(), h = s.hidden, f = s.intermediate;
  const DeviceTensor weight(std::vector<float>(static_cast<size_t>(rows), 0.5F));
  const DeviceTensor source(std::vector<int32_t>(static_cast<size_t>(rows), 0));
  const DeviceTensor token_rows({g.total(), 1}, DType::kI32);
  g.groups.weight = weight;
  g.groups.source_row = source;
  g.groups.token_rows = token_rows;
  const DeviceTensor x = randoms({rows, h}, 1), w1 = randoms({s.experts, 2 * f, h}, 2, 0.02F),
                     w2 = randoms({s.experts, h, f}, 3, 0.02F);
  const DeviceTensor gate_up = randoms({g.total(), 2 * f}, 4), fc1({rows, 2 * f}, DType::kBF16),
                     dgate_up({rows, 2 * f}, DType::kBF16), act({rows, f}, DType::kBF16);
  const DeviceTensor dweight({rows}, DType::kF32), partials({ceil_div(f, ops::kSwigluTile), rows}, DType::kF32);
  const double product = 2.0 * static_cast<double>(g.total()) * static_cast<double>(h * f);
  std::vector<Entry> entries{
      d,
      {"fc1 alone", 2 * product, [&] { cuda::sm90::grouped_gemm_forward(ctx, {x, w1, g.groups, fc1}); }},
      {"fc1 + SwiGLU", 2 * product, [&] { cuda::grouped_swiglu_forward(ctx, {x, w1, g.groups, gate_up, act}); }},
      {"dgrad of fc2 alone", product, [&] { cuda::sm90::grouped_gemm_dgrad(ctx, {x, w2, g.groups, act}); }},
      {"dgrad of fc2 + SwiGLU", product,
       [&] { cuda::grouped_swiglu_backward(ctx, {x, w2, gate_up, g.groups, dgate_up, act, dweight, partials}); }}};
  take_turns(entries, 9);
  for (const Entry& e : entries)
    fmt::print("{:18} {:24} {:8.3f} ms {:7.1f} TFLOP/s {:5.3f} D\n", s.name, e.name, e.median_ms(), e.rate(),
               e.rate() / entries[0].rate());
}

}  // namespace
}  // namespace cistron::bench

int main() {
  cublasHandle_t handle = nullptr;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 1;
  const auto d = cistron::bench::dense(handle);
  for (const auto& shape : cistron::bench::kShapes) cistron::bench::shape(shape, d);
}
