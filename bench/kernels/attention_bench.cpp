#include <numeric>

#include "bench/kernels/support.h"
#include "cistron/ops/attention.h"

namespace cistron::bench {
namespace {

// 4096 tokens in equal sequences, four heads of 64. Arguments: length, causal, dtype. Multiplications count that a mask leaves.
void shapes(benchmark::internal::Benchmark* b) { b->ArgsProduct({{128, 512, 2048}, {0, 1}, {kF32, kBF16}})->UseRealTime(); }

struct Operands {
  static constexpr int64_t kTokens = 4096;
  static constexpr ops::AttentionShape kShape{.num_heads = 4, .num_kv_heads = 4, .head_dim = 64};

  AllCores ctx;
  bool causal;
  Tensor qkv, out, dqkv, lse, cu_seqlens, positions;
  explicit Operands(const benchmark::State& s)
      : causal(s.range(1) != 0),
        qkv(normals(ctx, {kTokens, kShape.qkv_width()}, dtype_arg(s, 2))),
        out(normals(ctx, {kTokens, kShape.out_width()}, qkv.dtype())),
        dqkv(ctx.empty(qkv.shape(), qkv.dtype())),
        lse(ctx.empty({kShape.num_heads, kTokens}, DType::kF32)),
        cu_seqlens(ctx.empty({kTokens / s.range(0) + 1}, DType::kI32)),
        positions(ctx.empty({kTokens}, DType::kI32)) {
    int32_t end = 0;
    for (int32_t& e : cu_seqlens.span<int32_t>()) e = std::exchange(end, end + static_cast<int32_t>(s.range(0)));
    for (int32_t t = 0; t < kTokens; ++t) positions.data<int32_t>()[t] = t % static_cast<int32_t>(s.range(0));
  }
};

int64_t products(const benchmark::State& s, int64_t count) {
  const auto& shape = Operands::kShape;
  return count * 2 * Operands::kTokens * s.range(0) * shape.num_heads * shape.head_dim / (s.range(1) != 0 ? 2 : 1);
}

void attention_forward(benchmark::State& state) {
  Operands o(state);
  for (auto _ : state)
    ops::attention_forward(o.ctx, {.qkv = o.qkv,
                                   .cu_seqlens = o.cu_seqlens,
                                   .shape = Operands::kShape,
                                   .scale = 0.125F,
                                   .causal = o.causal,
                                   .out = o.out,
                                   .lse = o.lse});
  count_flops(state, products(state, 2));
}
BENCHMARK(attention_forward)->Apply(shapes);

void attention_backward(benchmark::State& state) {
  Operands o(state);
  ops::attention_forward(o.ctx, {.qkv = o.qkv,
                                 .cu_seqlens = o.cu_seqlens,
                                 .shape = Operands::kShape,
                                 .scale = 0.125F,
                                 .causal = o.causal,
                                 .out = o.out,
                                 .lse = o.lse});
  for (auto _ : state)
    ops::attention_backward(o.ctx, {.dout = o.out,
                                    .qkv = o.qkv,
                                    .out = o.out,
                                    .lse = o.lse,
                                    .cu_seqlens = o.cu_seqlens,
                                    .shape = Operands::kShape,
                                    .scale = 0.125F,
                                    .causal = o.causal,
                                    .dqkv = o.dqkv});
  count_flops(state, products(state, 5));
}
BENCHMARK(attention_backward)->Apply(shapes);

void rope(benchmark::State& state) {
  Operands o(state);
  for (auto _ : state) ops::rope(o.ctx, {.qkv = o.qkv, .positions = o.positions, .shape = Operands::kShape});
  count_bytes(state, 2 * o.qkv.bytes() * 2 / 3);
}
BENCHMARK(rope)->Args({512, 1, kF32})->Args({512, 1, kBF16})->UseRealTime();

}  // namespace
}  // namespace cistron::bench
