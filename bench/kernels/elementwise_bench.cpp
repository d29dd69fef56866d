#include "bench/kernels/support.h"
#include "cistron/ops/elementwise.h"

namespace cistron::bench {
namespace {

void add(benchmark::State& state) {
  AllCores ctx;
  const Tensor a = normals(ctx, {state.range(0)}, dtype_arg(state, 1)), b = normals(ctx, a.shape(), a.dtype());
  for (auto _ : state) ops::add(ctx, {a, b, a});
  count_bytes(state, 3 * a.bytes());
}
BENCHMARK(add)->ArgsProduct({{1 << 20, 1 << 24}, {kF32, kBF16}})->UseRealTime();

void cast(benchmark::State& state) {
  AllCores ctx;
  const Tensor x = normals(ctx, {state.range(0)}, DType::kF32), out = ctx.empty(x.shape(), DType::kBF16);
  for (auto _ : state) ops::cast(ctx, {x, out});
  count_bytes(state, x.bytes() + out.bytes());
}
BENCHMARK(cast)->Arg(1 << 20)->Arg(1 << 24)->UseRealTime();

}  // namespace
}  // namespace cistron::bench
