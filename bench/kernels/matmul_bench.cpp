#include "bench/kernels/support.h"
#include "cistron/ops/matmul.h"

namespace cistron::bench {
namespace {

// Arguments: M, N, K, dtype.
void shapes(benchmark::internal::Benchmark* b) {
  for (const int64_t dtype : {kF32, kBF16})
    for (const auto& [m, n, k] : {std::tuple{4096, 768, 256}, {4096, 256, 256}, {4096, 33, 256}, {2048, 1024, 1024}})
      b->Args({m, n, k, dtype});
  b->UseRealTime();
}

struct Operands {
  AllCores ctx;
  Tensor x, w, y, dw;
  explicit Operands(const benchmark::State& s)
      : x(normals(ctx, {s.range(0), s.range(2)}, dtype_arg(s, 3))),
        w(normals(ctx, {s.range(1), s.range(2)}, x.dtype())),
        y(normals(ctx, {s.range(0), s.range(1)}, x.dtype())),
        dw(ctx.empty(w.shape(), DType::kF32)) {}
};

void matmul_forward(benchmark::State& state) {
  Operands o(state);
  for (auto _ : state) ops::matmul_forward(o.ctx, {.x = o.x, .w = o.w, .out = o.y});
  count_flops(state, 2 * o.y.numel() * state.range(2));
}
BENCHMARK(matmul_forward)->Apply(shapes);

void matmul_dgrad(benchmark::State& state) {
  Operands o(state);
  for (auto _ : state) ops::matmul_dgrad(o.ctx, {.dy = o.y, .w = o.w, .out = o.x});
  count_flops(state, 2 * o.y.numel() * state.range(2));
}
BENCHMARK(matmul_dgrad)->Apply(shapes);

void matmul_wgrad(benchmark::State& state) {
  Operands o(state);
  for (auto _ : state) ops::matmul_wgrad(o.ctx, {.dy = o.y, .x = o.x, .out = o.dw});
  count_flops(state, 2 * o.y.numel() * state.range(2));
}
BENCHMARK(matmul_wgrad)->Apply(shapes);

}  // namespace
}  // namespace cistron::bench
