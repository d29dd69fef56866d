#include "bench/kernels/support.h"
#include "cistron/ops/rms_norm.h"

namespace cistron::bench {
namespace {

struct Operands {
  Tensor x, w, out, rstd, dw;
  Operands(Context& ctx, const benchmark::State& state)
      : x(normals(ctx, {state.range(0), state.range(1)}, dtype_arg(state, 2))),
        w(normals(ctx, {state.range(1)}, DType::kF32)),
        out(ctx.empty(x.shape(), x.dtype())),
        rstd(ctx.empty({state.range(0)}, DType::kF32)),
        dw(ctx.empty(w.shape(), DType::kF32)) {
    ops::rms_norm_forward(ctx, {.x = x, .w = w, .out = out, .rstd = rstd});
  }
};

void rms_norm_forward(benchmark::State& state) {
  AllCores ctx;
  const Operands o(ctx, state);
  for (auto _ : state) ops::rms_norm_forward(ctx, {.x = o.x, .w = o.w, .out = o.out, .rstd = o.rstd});
  count_bytes(state, 2 * o.x.bytes());
}
BENCHMARK(rms_norm_forward)->ArgsProduct({{4096}, {256, 2048}, {kF32, kBF16}})->UseRealTime();

void rms_norm_backward(benchmark::State& state) {
  AllCores ctx;
  const Operands o(ctx, state);
  const Tensor dx = ctx.empty(o.x.shape(), o.x.dtype());
  for (auto _ : state) ops::rms_norm_backward(ctx, {.dy = o.out, .x = o.x, .w = o.w, .rstd = o.rstd, .dx = dx, .dw = {o.dw}});
  count_bytes(state, 3 * o.x.bytes());
}
BENCHMARK(rms_norm_backward)->ArgsProduct({{4096}, {256, 2048}, {kF32, kBF16}})->UseRealTime();

}  // namespace
}  // namespace cistron::bench
