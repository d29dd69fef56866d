#include "bench/kernels/routed_support.h"
#include "cistron/ops/router.h"

namespace cistron::bench {
namespace {

void router_forward(benchmark::State& state) {
  AllCores ctx;
  const Routed r = route(ctx, state.range(0), state.range(1), state.range(2));
  for (auto _ : state) ops::router_forward(ctx, {r.logits, r.probs, r.lse, r.experts, r.weights});
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(router_forward)->Args({4096, 2, 8})->Args({4096, 8, 64})->UseRealTime();

void router_stats(benchmark::State& state) {
  AllCores ctx;
  const Routed r = route(ctx, state.range(0), state.range(1), state.range(2));
  const Tensor stats = ctx.empty({2 * state.range(2) + 3}, DType::kF64);
  ops::zero(ctx, {stats});
  for (auto _ : state) ops::router_stats(ctx, {r.probs, r.lse, r.experts, stats});
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(router_stats)->Args({4096, 2, 8})->Args({4096, 8, 64})->UseRealTime();

void router_backward(benchmark::State& state) {
  AllCores ctx;
  const Routed r = route(ctx, state.range(0), state.range(1), state.range(2));
  const Tensor stats = ctx.empty({2 * state.range(2) + 3}, DType::kF64), dlogits = ctx.empty(r.logits.shape(), DType::kF32);
  ops::zero(ctx, {stats});
  ops::router_stats(ctx, {r.probs, r.lse, r.experts, stats});
  for (auto _ : state) ops::router_backward(ctx, {r.probs, r.lse, r.experts, r.weights, r.weights, stats, 0.01F, 1e-3F, dlogits});
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(router_backward)->Args({4096, 2, 8})->Args({4096, 8, 64})->UseRealTime();

}  // namespace
}  // namespace cistron::bench
