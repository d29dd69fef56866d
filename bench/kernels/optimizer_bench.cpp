#include "bench/kernels/support.h"
#include "cistron/ops/optimizer.h"

namespace cistron::bench {
namespace {

void grad_norm(benchmark::State& state) {
  AllCores ctx;
  const std::vector<Tensor> grads{normals(ctx, {state.range(0)}, DType::kF32)};
  StepState step{.clip_norm = 1.0F};
  for (auto _ : state) ops::grad_norm(ctx, {grads, &step});
  count_bytes(state, grads[0].bytes());
}
BENCHMARK(grad_norm)->Arg(7'400'000)->UseRealTime();

void adamw(benchmark::State& state) {
  AllCores ctx;
  const Shape shape{state.range(0)};
  const std::vector<ops::AdamWTensor> tensors{{.master = normals(ctx, shape, DType::kF32),
                                               .grad = normals(ctx, shape, DType::kF32),
                                               .m = normals(ctx, shape, DType::kF32),
                                               .v = ctx.empty(shape, DType::kF32),
                                               .working = ctx.empty(shape, DType::kBF16),
                                               .weight_decay = 0.1F}};
  ops::zero(ctx, {tensors[0].v});
  const StepState step{.step = 100, .learning_rate = 1e-3F};
  for (auto _ : state) ops::adamw(ctx, {.tensors = tensors, .state = &step});
  count_bytes(state, 7 * 4 * state.range(0) + 2 * state.range(0));
}
BENCHMARK(adamw)->Arg(7'400'000)->UseRealTime();

}  // namespace
}  // namespace cistron::bench
