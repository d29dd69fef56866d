#include "cistron/ops/attention.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cistron/cpu/fast/words.h"
#include "cistron/cpu/ref/attention.h"
#include "tests/ops/attention_bounds.h"

namespace cistron::test {
namespace {

struct Case {
  ops::AttentionShape shape;
  std::vector<int64_t> lengths;
  bool causal = true;
  DType dtype = DType::kF32;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << fmt::format("{}/{} heads of {}, lengths {}, {}, {}", c.shape.num_heads, c.shape.num_kv_heads, c.shape.head_dim,
                     fmt::join(c.lengths, " "), c.causal ? "causal" : "bidirectional", name_of(c.dtype));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const bool causal : {true, false}) {
      all.push_back({{4, 2, 20}, {1, 64, 0, 65, 37, 130, 1, 0}, causal, dtype});
      all.push_back({{2, 2, 64}, {0, 200, 3}, causal, dtype});
      all.push_back({{3, 1, 7}, {5, 1, 1, 66}, causal, dtype});
      all.push_back({{1, 1, 16}, {1}, causal, dtype});
      all.push_back({{2, 1, 8}, {3, 600, 300}, causal, dtype});  // more keys than meet a block of queries at once
    }
  return all;
}

Tensor cu_seqlens_of(const Context& ctx, const std::vector<int64_t>& lengths) {
  std::vector<double> ends{0};
  for (const int64_t length : lengths) ends.push_back(ends.back() + static_cast<double>(length));
  return tensor_of(ctx, {static_cast<int64_t>(ends.size())}, DType::kI32, ends);
}

// One problem with its operands and poisoned results.
struct Problem {
  Case c;
  int64_t tokens = std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0});
  float scale = 1.0F / std::sqrt(static_cast<float>(c.shape.head_dim));
  Tensor qkv, dout, cu_seqlens, out, lse, dqkv;

  Problem(const Context& ctx, const Case& what)
      : c(what),
        qkv(random_tensor(ctx, {tokens, c.shape.qkv_width()}, c.dtype, 1, 1.5)),
        dout(random_tensor(ctx, {tokens, c.shape.out_width()}, c.dtype, 2)),
        cu_seqlens(cu_seqlens_of(ctx, c.lengths)),
        out(poisoned(ctx, dout.shape(), c.dtype)),
        lse(poisoned(ctx, {c.shape.num_heads, tokens}, DType::kF32)),
        dqkv(poisoned(ctx, qkv.shape(), c.dtype)) {}

  void run(Context& ctx) const {
    ops::attention_forward(
        ctx,
        {.qkv = qkv, .cu_seqlens = cu_seqlens, .shape = c.shape, .scale = scale, .causal = c.causal, .out = out, .lse = lse});
    ops::attention_backward(ctx, {.dout = dout,
                                  .qkv = qkv,
                                  .out = out,
                                  .lse = lse,
                                  .cu_seqlens = cu_seqlens,
                                  .shape = c.shape,
                                  .scale = scale,
                                  .causal = c.causal,
                                  .dqkv = dqkv});
  }
  [[nodiscard]] AttentionBounds bounds(const AttentionCase& of) const {
    const bool rounds = c.dtype == DType::kBF16 && cpu::kHasBf16Words;
    return {of, c.dtype, rounds ? unit_roundoff(DType::kBF16) : 0.0};
  }
  [[nodiscard]] AttentionCase in_double() const {
    const auto ends = to_double(cu_seqlens);
    return {to_matrix(qkv), {ends.begin(), ends.end()}, c.shape, static_cast<double>(scale), c.causal};
  }
};

class Attention : public testing::TestWithParam<Case> {};

TEST_P(Attention, AgreesWithTheDefinition) {
  CpuContext ctx(2);
  const Problem problem(ctx, GetParam());
  problem.run(ctx);
  const AttentionCase c = problem.in_double();
  const AttentionBounds bounds = problem.bounds(c);
  const auto want = cpu::ref::attention_forward(c);
  EXPECT_TRUE(within(problem.out, want.out.data, bounds.out()));
  EXPECT_TRUE(within(problem.lse, want.lse.data, bounds.lse()));
  const auto dout = to_matrix(problem.dout), dqkv = cpu::ref::attention_backward(c, dout);
  EXPECT_TRUE(within(problem.dqkv, dqkv.data, bounds.dqkv(dout, dqkv)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Attention, testing::ValuesIn(cases()));

TEST(AttentionControl, NeighboursSequencesAndMasksShow) {
  CpuContext ctx;
  const Problem problem(ctx, {{4, 2, 20}, {1, 64, 0, 65, 37}, true, DType::kBF16});
  problem.run(ctx);
  const auto rejected = [&](const AttentionCase& c) {
    const AttentionBounds bounds = problem.bounds(c);
    const auto dout = to_matrix(problem.dout), dqkv = cpu::ref::attention_backward(c, dout);
    const auto want = cpu::ref::attention_forward(c);
    EXPECT_FALSE(within(problem.out, want.out.data, bounds.out()));
    EXPECT_FALSE(within(problem.lse, want.lse.data, bounds.lse()));
    EXPECT_FALSE(within(problem.dqkv, dqkv.data, bounds.dqkv(dout, dqkv)));
  };
  AttentionCase wrong = problem.in_double();
  ++wrong.cu_seqlens[1];  // one token counts to the sequence before it
  rejected(wrong);
  wrong = problem.in_double();
  wrong.causal = false;
  rejected(wrong);
  wrong = problem.in_double();
  for (int64_t t = 0; t < problem.tokens; ++t)  // the two key heads change places
    for (int64_t d = 0; d < 20; ++d) std::swap(wrong.qkv(t, wrong.k(0, d)), wrong.qkv(t, wrong.k(2, d)));
  rejected(wrong);
}

TEST(AttentionBits, AloneAndPackedForAnyThreads) {
  CpuContext one(1), three(3);
  for (const bool causal : {true, false}) {
    const Problem packed(one, {{4, 2, 24}, {70, 1, 0, 64, 390, 33}, causal, DType::kF32});
    packed.run(three);
    int64_t first = 0;
    for (const int64_t length : packed.c.lengths) {
      Problem alone(one, {packed.c.shape, {length}, causal, DType::kF32});
      alone.qkv = packed.qkv.rows(first, length);
      alone.dout = packed.dout.rows(first, length);
      alone.run(one);
      EXPECT_TRUE(same_bits(alone.out, packed.out.rows(first, length))) << length;
      EXPECT_TRUE(same_bits(alone.dqkv, packed.dqkv.rows(first, length))) << length;
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t t = 0; t < length; ++t)
          ASSERT_EQ(alone.lse.data<float>()[h * length + t], packed.lse.data<float>()[h * packed.tokens + first + t]);
      first += length;
    }
  }
}

TEST(AttentionReference, GradientIsTheDifferenceQuotient) {
  CpuContext ctx;
  for (const bool causal : {true, false}) {
    AttentionCase c{to_matrix(random_tensor(ctx, {7, 12}, DType::kF64, 1)), {0, 4, 4, 5, 7}, {2, 1, 3}, 0.6, causal};
    const auto dout = to_matrix(random_tensor(ctx, {7, 6}, DType::kF64, 2));
    const auto got = cpu::ref::attention_backward(c, dout);
    const auto numeric = numeric_gradient(
        [&](const std::vector<double>& values) {
          c.qkv.data = values;
          const auto out = cpu::ref::attention_forward(c).out;
          return std::inner_product(out.data.begin(), out.data.end(), dout.data.begin(), 0.0);
        },
        c.qkv.data);
    // h^2 = 1e-10 times a third derivative of order 1 to 10, and 1e-16 / h of rounding.
    const std::vector<double> bound(numeric.size(), 1e-8);
    EXPECT_TRUE(within(got.data, numeric, bound));
    c.scale *= 1.0001;
    EXPECT_FALSE(within(cpu::ref::attention_backward(c, dout).data, numeric, bound));
  }
}

TEST(AttentionChecks, ShapesOnMetaAndSequencesThatDoNotFit) {
  Context ctx = meta_context();
  const ops::AttentionShape shape{4, 2, 8};
  const Tensor qkv = ctx.empty({10, 64}), out = ctx.empty({10, 32}), lse = ctx.empty({4, 10}), cu = ctx.empty({3}, DType::kI32),
               bad = ctx.empty({10, 60});
  ops::attention_forward(ctx, {.qkv = qkv, .cu_seqlens = cu, .shape = shape, .out = out, .lse = lse});
  ops::attention_backward(ctx, {.dout = out, .qkv = qkv, .out = out, .lse = lse, .cu_seqlens = cu, .shape = shape, .dqkv = qkv});
  const auto forward = [](Context& on, const Tensor& in, const Tensor& ends, const ops::AttentionShape& s, const Tensor& o,
                          const Tensor& l) {
    return error_of([&] { ops::attention_forward(on, {.qkv = in, .cu_seqlens = ends, .shape = s, .out = o, .lse = l}); });
  };
  EXPECT_NE(forward(ctx, bad, cu, shape, out, lse).find("[attention_forward] qkv"), std::string::npos);
  EXPECT_NE(forward(ctx, qkv, cu, {4, 3, 8}, out, lse).find("cannot share"), std::string::npos);
  CpuContext real;
  const Tensor x = real.empty({10, 64}), y = real.empty({10, 32}), l = real.empty({4, 10});
  EXPECT_NE(forward(real, x, cu_seqlens_of(real, {4, 5}), shape, y, l).find("from 0 to 9"), std::string::npos);
  EXPECT_NE(forward(real, x, cu_seqlens_of(real, {12, -2}), shape, y, l).find("falls at 2"), std::string::npos);
}

}  // namespace
}  // namespace cistron::test
