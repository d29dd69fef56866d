#include "bench/kernels/support.h"
#include "cistron/ops/cross_entropy.h"

namespace cistron::bench {
namespace {

// Arguments: tokens, hidden, vocabulary, dtype. Forward and gradients.
void linear_cross_entropy(benchmark::State& state) {
  AllCores ctx;
  const Tensor x = normals(ctx, {state.range(0), state.range(1)}, dtype_arg(state, 3)),
               w = normals(ctx, {state.range(2), state.range(1)}, x.dtype()),
               labels = indices(ctx, {state.range(0)}, static_cast<int32_t>(state.range(2))),
               weight = normals(ctx, {state.range(0)}, DType::kF32), nll = ctx.empty({state.range(0)}, DType::kF32),
               loss = ctx.empty({1}, DType::kF64), dw = ctx.empty(w.shape(), DType::kF32);
  ops::zero(ctx, {loss});
  const StepState step;
  const Tensor dx = ctx.empty(x.shape(), x.dtype());
  for (auto _ : state)
    ops::linear_cross_entropy(ctx, {.x = x,
                                    .w = w,
                                    .labels = labels,
                                    .loss_weight = weight,
                                    .nll = nll,
                                    .loss = loss,
                                    .state = &step,
                                    .dx = dx,
                                    .dw = {dw, false}});
  count_flops(state, 3 * 2 * state.range(0) * state.range(1) * state.range(2));
}
BENCHMARK(linear_cross_entropy)
    ->ArgsProduct({{4096}, {256}, {33}, {kF32, kBF16}})
    ->ArgsProduct({{1024}, {512}, {4096}, {kF32, kBF16}})
    ->UseRealTime();

}  // namespace
}  // namespace cistron::bench
