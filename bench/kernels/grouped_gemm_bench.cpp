#include "bench/kernels/routed_support.h"
#include "cistron/ops/grouped_gemm.h"

namespace cistron::bench {
namespace {

// Arguments: tokens (two of eight experts each), N, K, dtype.
void shapes(benchmark::internal::Benchmark* b) {
  for (const int64_t dtype : {kF32, kBF16})
    for (const auto& [t, n, k] : {std::tuple{4096, 512, 256}, {4096, 256, 256}}) b->Args({t, n, k, dtype});
  b->UseRealTime();
}

struct Operands {
  AllCores ctx;
  Routed routed;
  Tensor x, w, y, dw;
  explicit Operands(const benchmark::State& s)
      : routed(route(ctx, s.range(0), 2, 8)),
        x(normals(ctx, {routed.groups.max_rows(), s.range(2)}, dtype_arg(s, 3))),
        w(normals(ctx, {8, s.range(1), s.range(2)}, x.dtype())),
        y(normals(ctx, {routed.groups.max_rows(), s.range(1)}, x.dtype())),
        dw(ctx.empty(w.shape(), DType::kF32)) {}
};

void count(benchmark::State& state) { count_flops(state, 2 * 2 * state.range(0) * state.range(1) * state.range(2)); }

void grouped_gemm_forward(benchmark::State& state) {
  Operands o(state);
  for (auto _ : state) ops::grouped_gemm_forward(o.ctx, {.x = o.x, .w = o.w, .groups = o.routed.groups, .out = o.y});
  count(state);
}
BENCHMARK(grouped_gemm_forward)->Apply(shapes);

void grouped_gemm_dgrad(benchmark::State& state) {
  Operands o(state);
  for (auto _ : state) ops::grouped_gemm_dgrad(o.ctx, {.dy = o.y, .w = o.w, .groups = o.routed.groups, .out = o.x});
  count(state);
}
BENCHMARK(grouped_gemm_dgrad)->Apply(shapes);

void grouped_gemm_wgrad(benchmark::State& state) {
  Operands o(state);
  for (auto _ : state) ops::grouped_gemm_wgrad(o.ctx, {.dy = o.y, .x = o.x, .groups = o.routed.groups, .out = o.dw});
  count(state);
}
BENCHMARK(grouped_gemm_wgrad)->Apply(shapes);

}  // namespace
}  // namespace cistron::bench
