#include "bench/kernels/routed_support.h"
#include "cistron/ops/grouped_bias.h"

namespace cistron::bench {
namespace {

// Arguments: tokens (two of eight experts each), N, dtype.
void shapes(benchmark::internal::Benchmark* b) {
  for (const int64_t dtype : {kF32, kBF16})
    for (const int64_t n : {256, 1024}) b->Args({4096, n, dtype});
  b->UseRealTime();
}

/// Scaled by the routing weights, whose gradient it gives too.
void grouped_bias_backward(benchmark::State& state) {
  AllCores ctx;
  const Routed routed = route(ctx, state.range(0), 2, 8);
  const Tensor dy = normals(ctx, {routed.groups.max_rows(), state.range(1)}, dtype_arg(state, 2));
  const ops::ExpertBias bias{.values = normals(ctx, {8, state.range(1)}, DType::kF32), .scaled = true};
  const GradSink dbias{.grad = ctx.empty(bias.values.shape(), DType::kF32)};
  const Tensor dweight = ctx.empty({routed.groups.max_rows()}, DType::kF32);
  for (auto _ : state)
    ops::grouped_bias_backward(ctx, {.dy = dy, .bias = bias, .groups = routed.groups, .dbias = dbias, .dweight = dweight});
  count_bytes(state, dy.bytes());
}
BENCHMARK(grouped_bias_backward)->Apply(shapes);

}  // namespace
}  // namespace cistron::bench
