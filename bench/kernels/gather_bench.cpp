#include "bench/kernels/routed_support.h"
#include "cistron/ops/gather.h"

namespace cistron::bench {
namespace {

void build_groups(benchmark::State& state) {
  AllCores ctx;
  const Routed r = route(ctx, state.range(0), 2, 8);
  for (auto _ : state) ops::build_groups(ctx, {r.experts, r.weights, r.groups});
  state.SetItemsProcessed(state.iterations() * r.experts.numel());
}
BENCHMARK(build_groups)->Arg(4096)->Arg(65536)->UseRealTime();

void gather(benchmark::State& state) {
  AllCores ctx;
  const Routed r = route(ctx, state.range(0), 2, 8);
  const Tensor x = normals(ctx, {state.range(0), state.range(1)}, dtype_arg(state, 2));
  const Tensor out = ctx.empty({r.groups.max_rows(), state.range(1)}, x.dtype());
  for (auto _ : state) ops::gather(ctx, {x, r.groups, out});
  count_bytes(state, 2 * out.bytes());
}
BENCHMARK(gather)->ArgsProduct({{4096}, {256, 2048}, {kF32, kBF16}})->UseRealTime();

void combine(benchmark::State& state) {
  AllCores ctx;
  const Routed r = route(ctx, state.range(0), 2, 8);
  const Tensor x = normals(ctx, {r.groups.max_rows(), state.range(1)}, dtype_arg(state, 2));
  const Tensor out = ctx.empty({state.range(0), state.range(1)}, x.dtype());
  for (auto _ : state) ops::combine(ctx, {x, r.groups, out});
  count_bytes(state, x.bytes() + out.bytes());
}
BENCHMARK(combine)->ArgsProduct({{4096}, {256, 2048}, {kF32, kBF16}})->UseRealTime();

void gather_choices(benchmark::State& state) {
  AllCores ctx;
  const Routed r = route(ctx, state.range(0), 2, 8);
  const Tensor out = ctx.empty(r.weights.shape(), DType::kF32);
  for (auto _ : state) ops::gather_choices(ctx, {r.groups.weight, r.groups, out});
  count_bytes(state, 3 * out.bytes());
}
BENCHMARK(gather_choices)->Arg(4096)->Arg(65536)->UseRealTime();

}  // namespace
}  // namespace cistron::bench
