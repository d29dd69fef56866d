// Attention on the card against float64: packed sequences of all lengths, shared key/value heads, causal and not; f32 on ordinary
// cores, bf16 by tensor cores where head_dim is a multiple of 8.
#include "cistron/ops/attention.h"

#include <numeric>

#include "cistron/cpu/ref/attention.h"
#include "cistron/cuda/attention/flash.h"
#include "cistron/cuda/runtime/runtime.h"
#include "tests/cuda/support.h"
#include "tests/ops/attention_bounds.h"

namespace cistron::test {
namespace {

struct Case {
  ops::AttentionShape shape;
  std::vector<int64_t> lengths;
  bool causal = true;
  DType dtype = DType::kF32;
  bool portable = false;  // the kernels of any card, also where this one has its own
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << fmt::format("{}{}/{} heads of {}, lengths {}, {}, {}", c.portable ? "portable, " : "", c.shape.num_heads,
                     c.shape.num_kv_heads, c.shape.head_dim, fmt::join(c.lengths, " "), c.causal ? "causal" : "bidirectional",
                     name_of(c.dtype));
}

const std::vector<int64_t> kMixed = {1, 64, 0, 65, 37, 130, 1, 0};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const bool causal : {true, false}) {
      const auto add = [&](ops::AttentionShape shape, const std::vector<int64_t>& lengths) {
        all.push_back({shape, lengths, causal, dtype});
      };
      add({4, 2, 20}, kMixed);
      add({3, 1, 7}, {5, 1, 1, 66});
      add({1, 1, 16}, {1});
      add({4, 1, 8}, kMixed);
      add({2, 2, 32}, {300});
      add({2, 2, 64}, {0, 200, 3});
      add({4, 2, 80}, kMixed);
      add({2, 1, 96}, {129, 128, 1});
      add({4, 2, 128}, kMixed);
      add({2, 1, 136}, {70, 200});
      add({2, 1, 256}, {140, 1, 33});
    }
  for (const DType dtype : {DType::kF32, DType::kBF16}) all.push_back({{2, 1, 64}, {1100}, true, dtype});
  for (const int64_t dim : {64, 80, 128})
    for (const bool causal : {true, false}) all.push_back({{4, 2, dim}, {129, 0, 70, 1, 250}, causal, DType::kBF16});
  for (const int64_t dim : {64, 80, 128}) all.push_back({{4, 2, dim}, kMixed, true, DType::kBF16, true});
  return all;
}

Tensor cu_seqlens_of(const Context& ctx, const std::vector<int64_t>& lengths) {
  std::vector<double> ends{0};
  for (const int64_t length : lengths) ends.push_back(ends.back() + static_cast<double>(length));
  return tensor_of(ctx, {static_cast<int64_t>(ends.size())}, DType::kI32, ends);
}

/// Operands on the host and on the card, and poisoned results there.
struct Problem {
  Case c;
  int64_t tokens = std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0});
  float scale = 1.0F / std::sqrt(static_cast<float>(c.shape.head_dim));
  Tensor qkv, dout, cu_seqlens;                        // host
  Tensor qkv_d, dout_d, cu_seqlens_d, out, lse, dqkv;  // card

  Problem(const Context& cpu, const Context& cuda, const Case& what)
      : c(what),
        qkv(random_tensor(cpu, {tokens, c.shape.qkv_width()}, c.dtype, 1, 1.5)),
        dout(random_tensor(cpu, {tokens, c.shape.out_width()}, c.dtype, 2)),
        cu_seqlens(cu_seqlens_of(cpu, c.lengths)),
        qkv_d(to_device(cuda, qkv)),
        dout_d(to_device(cuda, dout)),
        cu_seqlens_d(to_device(cuda, cu_seqlens)),
        out(poisoned_on_device(cuda, dout.shape(), c.dtype)),
        lse(poisoned_on_device(cuda, {c.shape.num_heads, tokens}, DType::kF32)),
        dqkv(poisoned_on_device(cuda, qkv.shape(), c.dtype)) {}

  void run(Context& ctx) const {
    const ops::AttentionForward forward{
        .qkv = qkv_d, .cu_seqlens = cu_seqlens_d, .shape = c.shape, .scale = scale, .causal = c.causal, .out = out, .lse = lse};
    ops::AttentionBackward backward{.dout = dout_d,
                                    .qkv = qkv_d,
                                    .out = out,
                                    .lse = lse,
                                    .cu_seqlens = cu_seqlens_d,
                                    .shape = c.shape,
                                    .scale = scale,
                                    .causal = c.causal,
                                    .dqkv = dqkv};
    if (!c.portable) {
      ops::attention_forward(ctx, forward);
      return ops::attention_backward(ctx, backward);
    }
    backward.delta = ctx.empty(lse.shape(), DType::kF32);
    cuda::flash::mma_forward(ctx, forward);
    cuda::flash::delta(ctx, backward);
    cuda::flash::mma_backward(ctx, backward);
  }
  [[nodiscard]] AttentionCase in_double() const {
    const auto ends = to_double(cu_seqlens);
    return {to_matrix(qkv), {ends.begin(), ends.end()}, c.shape, static_cast<double>(scale), c.causal};
  }
  [[nodiscard]] AttentionBounds bounds(const AttentionCase& of) const {
    const bool tensor_cores = c.dtype == DType::kBF16 && c.shape.head_dim % 8 == 0;
    return {of, c.dtype, tensor_cores ? unit_roundoff(DType::kBF16) : 0.0};
  }
};

class CudaAttention : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { CISTRON_NEEDS_CARD(); }
  CpuContext cpu{2};
  CudaContext cuda;
};

TEST_P(CudaAttention, AgreesWithTheDefinition) {
  const Problem problem(cpu, cuda, GetParam());
  problem.run(cuda);
  const AttentionCase c = problem.in_double();
  const AttentionBounds bounds = problem.bounds(c);
  const auto want = cpu::ref::attention_forward(c);
  EXPECT_TRUE(within(to_host(cpu, problem.out), want.out.data, bounds.out()));
  EXPECT_TRUE(within(to_host(cpu, problem.lse), want.lse.data, bounds.lse()));
  const auto dout = to_matrix(problem.dout), dqkv = cpu::ref::attention_backward(c, dout);
  EXPECT_TRUE(within(to_host(cpu, problem.dqkv), dqkv.data, bounds.dqkv(dout, dqkv)));

  const Problem again(cpu, cuda, GetParam());
  again.run(cuda);
  EXPECT_TRUE(same_bits(to_host(cpu, again.out), to_host(cpu, problem.out)));
  EXPECT_TRUE(same_bits(to_host(cpu, again.lse), to_host(cpu, problem.lse)));
  EXPECT_TRUE(same_bits(to_host(cpu, again.dqkv), to_host(cpu, problem.dqkv)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttention, testing::ValuesIn(cases()));

class CudaAttentionOnce : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { CISTRON_NEEDS_CARD(); }
  CpuContext cpu{2};
  CudaContext cuda;
};
INSTANTIATE_TEST_SUITE_P(DTypes, CudaAttentionOnce, testing::Values(DType::kF32, DType::kBF16));

TEST_P(CudaAttentionOnce, NeighboursSequencesAndMasksShow) {
  const Problem problem(cpu, cuda, {{4, 2, 24}, {1, 64, 0, 65, 37}, true, GetParam()});
  problem.run(cuda);
  const auto rejected = [&](const AttentionCase& c) {
    const AttentionBounds bounds = problem.bounds(c);
    const auto dout = to_matrix(problem.dout), dqkv = cpu::ref::attention_backward(c, dout);
    const auto want = cpu::ref::attention_forward(c);
    EXPECT_FALSE(within(to_host(cpu, problem.out), want.out.data, bounds.out()));
    EXPECT_FALSE(within(to_host(cpu, problem.lse), want.lse.data, bounds.lse()));
    EXPECT_FALSE(within(to_host(cpu, problem.dqkv), dqkv.data, bounds.dqkv(dout, dqkv)));
  };
  AttentionCase wrong = problem.in_double();
  ++wrong.cu_seqlens[1];  // one token counts to the sequence before it
  rejected(wrong);
  wrong = problem.in_double();
  wrong.causal = false;
  rejected(wrong);
  wrong = problem.in_double();
  for (int64_t t = 0; t < problem.tokens; ++t)  // the two key heads change places
    for (int64_t d = 0; d < 24; ++d) std::swap(wrong.qkv(t, wrong.k(0, d)), wrong.qkv(t, wrong.k(2, d)));
  rejected(wrong);
}

TEST_P(CudaAttentionOnce, ReplayGivesTheSameBitsForOtherSequencesToo) {
  const Problem first(cpu, cuda, {{4, 2, 64}, {100, 0, 57, 143}, true, GetParam()});
  first.run(cuda);
  const Problem second(cpu, cuda, {{4, 2, 64}, {300, 0, 0, 0}, true, GetParam()});
  second.run(cuda);
  // Captured with the first one's sequences, replayed with the second one's.
  const Problem captured(cpu, cuda, first.c);
  replay_captured(int64_t{64} << 20, 1, [&](Context& ctx) { captured.run(ctx); });
  EXPECT_TRUE(same_bits(to_host(cpu, captured.dqkv), to_host(cpu, first.dqkv)));
  const Problem other(cpu, cuda, first.c);
  replay_captured(int64_t{64} << 20, 2, [&](Context& ctx) {
    CISTRON_CUDA_CHECK(cudaMemcpyAsync(other.cu_seqlens_d.raw(), second.cu_seqlens_d.raw(), 5 * sizeof(int32_t),
                                       cudaMemcpyDeviceToDevice, ctx.stream));
    other.run(ctx);
  });
  EXPECT_TRUE(same_bits(to_host(cpu, other.out), to_host(cpu, second.out)));
  EXPECT_TRUE(same_bits(to_host(cpu, other.dqkv), to_host(cpu, second.dqkv)));
}

TEST_P(CudaAttentionOnce, NoTokensAndRefusals) {
  const Problem none(cpu, cuda, {{4, 2, 64}, {}, true, GetParam()});
  none.run(cuda);
  const Problem wide(cpu, cuda, {{1, 1, 264}, {3}, true, GetParam()});
  EXPECT_NE(error_of([&] { wide.run(cuda); }).find("at most 256"), std::string::npos);
}

}  // namespace
}  // namespace cistron::test
