#include "bench/kernels/routed_support.h"
#include "cistron/ops/swiglu.h"

namespace cistron::bench {
namespace {

void scaled_swiglu_forward(benchmark::State& state) {
  AllCores ctx;
  const Routed r = route(ctx, state.range(0), 2, 8);
  const Tensor gate_up = normals(ctx, {r.groups.max_rows(), 2 * state.range(1)}, dtype_arg(state, 2));
  const Tensor out = ctx.empty({r.groups.max_rows(), state.range(1)}, gate_up.dtype());
  for (auto _ : state) ops::scaled_swiglu_forward(ctx, {gate_up, r.groups, out});
  count_bytes(state, gate_up.bytes() + out.bytes());
}
BENCHMARK(scaled_swiglu_forward)->ArgsProduct({{4096}, {256, 2048}, {kF32, kBF16}})->UseRealTime();

void scaled_swiglu_backward(benchmark::State& state) {
  AllCores ctx;
  const Routed r = route(ctx, state.range(0), 2, 8);
  const Tensor gate_up = normals(ctx, {r.groups.max_rows(), 2 * state.range(1)}, dtype_arg(state, 2));
  const Tensor dy = normals(ctx, {r.groups.max_rows(), state.range(1)}, gate_up.dtype());
  const Tensor dgate_up = ctx.empty(gate_up.shape(), gate_up.dtype()), dweight = ctx.empty({r.groups.max_rows()}, DType::kF32);
  for (auto _ : state) ops::scaled_swiglu_backward(ctx, {dy, gate_up, r.groups, dgate_up, dweight});
  count_bytes(state, 2 * gate_up.bytes() + dy.bytes());
}
BENCHMARK(scaled_swiglu_backward)->ArgsProduct({{4096}, {256, 2048}, {kF32, kBF16}})->UseRealTime();

}  // namespace
}  // namespace cistron::bench
