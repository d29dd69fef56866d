#include "bench/kernels/support.h"
#include "cistron/ops/embedding.h"

namespace cistron::bench {
namespace {

constexpr int64_t kVocab = 33;

void embedding_forward(benchmark::State& state) {
  AllCores ctx;
  const Tensor table = normals(ctx, {kVocab, state.range(1)}, dtype_arg(state, 2)),
               tokens = indices(ctx, {state.range(0)}, kVocab);
  const Tensor out = ctx.empty({state.range(0), state.range(1)}, table.dtype());
  for (auto _ : state) ops::embedding_forward(ctx, {table, tokens, out});
  count_bytes(state, out.bytes());
}
BENCHMARK(embedding_forward)->ArgsProduct({{4096}, {256, 2048}, {kF32, kBF16}})->UseRealTime();

void embedding_backward(benchmark::State& state) {
  AllCores ctx;
  const Tensor dy = normals(ctx, {state.range(0), state.range(1)}, dtype_arg(state, 2)),
               tokens = indices(ctx, {state.range(0)}, kVocab);
  const Tensor dtable = ctx.empty({kVocab, state.range(1)}, DType::kF32);
  for (auto _ : state) ops::embedding_backward(ctx, {dy, tokens, {dtable}});
  count_bytes(state, dy.bytes());
}
BENCHMARK(embedding_backward)->ArgsProduct({{4096}, {256, 2048}, {kF32, kBF16}})->UseRealTime();

}  // namespace
}  // namespace cistron::bench
