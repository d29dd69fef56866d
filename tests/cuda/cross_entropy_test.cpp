// The head's product and the cross-entropy on the card against float64.
#include "cistron/ops/cross_entropy.h"

#include "cistron/cuda/runtime/runtime.h"
#include "tests/cuda/support.h"
#include "tests/ops/cross_entropy_bounds.h"

namespace cistron::test {
namespace {

struct Case {
  int64_t tokens, hidden, vocabulary;
  DType dtype = DType::kF32;
  bool accumulate = false;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << fmt::format("{} tokens, {} to {}, {}{}", c.tokens, c.hidden, c.vocabulary, name_of(c.dtype),
                     c.accumulate ? ", added" : "");
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const auto& [tokens, hidden, vocabulary] : {std::tuple{1, 8, 1},
                                                     {1, 20, 33},
                                                     {3, 80, 16},
                                                     {300, 48, 33},
                                                     {131, 64, 134},
                                                     {70, 33, 5},
                                                     {257, 64, 512},
                                                     {140, 40, 2500}})
      for (const bool accumulate : {false, true}) all.push_back({tokens, hidden, vocabulary, dtype, accumulate});
  return all;
}

constexpr float kScale = 0.037F;

/// Operands on the host, and what the card makes of them.
struct Problem {
  Problem(const Context& cpu, Context& cuda, const Case& what)
      : c(what),
        x(random_tensor(cpu, {c.tokens, c.hidden}, c.dtype, 1)),
        w(random_tensor(cpu, {c.vocabulary, c.hidden}, c.dtype, 2, 0.3)),
        labels(random_ints(cpu, {c.tokens}, 3, static_cast<int32_t>(c.vocabulary))),
        weight(random_tensor(cpu, {c.tokens}, DType::kF32, 4)),
        old_dw(c.accumulate ? random_tensor(cpu, {c.vocabulary, c.hidden}, DType::kF32, 5)
                            : poisoned(cpu, {c.vocabulary, c.hidden}, DType::kF32)),
        state(cuda.empty({static_cast<int64_t>(sizeof(StepState))}, DType::kU8)) {
    for (int64_t t = 1; t < c.tokens; t += 3) labels.span<int32_t>()[static_cast<size_t>(t)] = -1;
    StepState host{.loss_scale = kScale};
    CISTRON_CUDA_CHECK(cudaMemcpy(state.raw(), &host, sizeof(host), cudaMemcpyDefault));
  }

  struct Result {
    Tensor nll, loss, dx, dw;
  };
  Result outputs(const Context& cpu, Context& cuda) const {
    return {poisoned_on_device(cuda, {c.tokens}, DType::kF32), to_device(cuda, tensor_of(cpu, {1}, DType::kF64, {5.0})),
            poisoned_on_device(cuda, x.shape(), c.dtype), to_device(cuda, old_dw)};
  }
  void run(Context& cuda, const Result& r, bool gradients = true) const {
    const Tensor xd = to_device(cuda, x), wd = to_device(cuda, w), ld = to_device(cuda, labels), fd = to_device(cuda, weight);
    run_on(cuda, {xd, wd, ld, fd}, r, gradients);
  }
  void run_on(Context& cuda, const std::array<Tensor, 4>& in, const Result& r, bool gradients = true) const {
    ops::LinearCrossEntropy args{.x = in[0], .w = in[1], .labels = in[2], .loss_weight = in[3], .nll = r.nll, .loss = r.loss};
    if (gradients) {
      args.state = static_cast<const StepState*>(state.raw());
      args.dx = r.dx;
      args.dw = {r.dw, c.accumulate};
    }
    ops::linear_cross_entropy(cuda, args);
  }
  static Result on_host(const Context& cpu, const Result& r) {
    return {to_host(cpu, r.nll), to_host(cpu, r.loss), to_host(cpu, r.dx), to_host(cpu, r.dw)};
  }
  [[nodiscard]] CrossEntropyOperands operands() const { return {x, w, labels, weight, static_cast<double>(kScale)}; }

  Case c;
  Tensor x, w, labels, weight, old_dw, state;
};

class CudaCrossEntropy : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { CISTRON_NEEDS_CARD(); }
  CpuContext cpu{2};
  CudaContext cuda;
};

TEST_P(CudaCrossEntropy, LossAndGradients) {
  const Problem p(cpu, cuda, GetParam());
  const auto on_card = p.outputs(cpu, cuda), again = p.outputs(cpu, cuda);
  p.run(cuda, on_card);
  p.run(cuda, again);
  const auto got = Problem::on_host(cpu, on_card), repeat = Problem::on_host(cpu, again);
  EXPECT_TRUE(same_bits(repeat.nll, got.nll));
  EXPECT_TRUE(same_bits(repeat.loss, got.loss));
  EXPECT_TRUE(same_bits(repeat.dx, got.dx));
  EXPECT_TRUE(same_bits(repeat.dw, got.dw));

  auto want = p.operands().reference();
  auto bound = p.operands().bounds(want);
  EXPECT_TRUE(within(got.nll, want.nll, bound.nll));
  double loss_bound = 1e-12;
  const auto weights = to_double(p.weight);
  for (size_t t = 0; t < weights.size(); ++t) loss_bound += std::abs(weights[t]) * bound.nll[t];
  EXPECT_NEAR(*got.loss.data<double>(), 5.0 + want.loss, loss_bound);
  EXPECT_TRUE(within(got.dx, want.dx.data, bound.dx));
  const auto old = to_double(p.old_dw);
  for (size_t i = 0; p.c.accumulate && i < old.size(); ++i) {
    want.dw.data[i] += old[i];
    bound.dw[i] += (std::abs(old[i]) + std::abs(want.dw.data[i])) * unit_roundoff(DType::kF32);
  }
  EXPECT_TRUE(within(got.dw, want.dw.data, bound.dw));

  const auto alone = p.outputs(cpu, cuda);
  p.run(cuda, alone, false);
  EXPECT_TRUE(same_bits(to_host(cpu, alone.nll), got.nll));
  EXPECT_TRUE(same_bits(to_host(cpu, alone.loss), got.loss));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaCrossEntropy, testing::ValuesIn(cases()));

class CudaCrossEntropyOnce : public testing::Test {
 protected:
  void SetUp() override { CISTRON_NEEDS_CARD(); }
  CpuContext cpu{2};
  CudaContext cuda;
};

TEST_F(CudaCrossEntropyOnce, AWrongLabelFails) {
  const Problem p(cpu, cuda, {300, 48, 33, DType::kBF16});
  const auto out = p.outputs(cpu, cuda);
  p.run(cuda, out);
  const auto got = Problem::on_host(cpu, out);
  auto& label = p.labels.span<int32_t>()[0];
  label = (label + 1) % 33;
  const auto wrong = p.operands().reference();
  const auto bound = p.operands().bounds(wrong);
  EXPECT_FALSE(within(got.nll, wrong.nll, bound.nll));
  EXPECT_FALSE(within(got.dx, wrong.dx.data, bound.dx));
  EXPECT_FALSE(within(got.dw, wrong.dw.data, bound.dw));
}

TEST_F(CudaCrossEntropyOnce, ALabelOutsideTheVocabularyIsNotFinite) {
  for (const int64_t vocabulary : {33, 2500}) {
    const Problem p(cpu, cuda, {300, 48, vocabulary, DType::kBF16});
    p.labels.span<int32_t>()[15] = static_cast<int32_t>(vocabulary);
    const auto out = p.outputs(cpu, cuda);
    p.run(cuda, out);
    const auto got = Problem::on_host(cpu, out);
    EXPECT_TRUE(std::isnan(got.nll.data<float>()[15]));
    EXPECT_TRUE(std::isnan(*got.loss.data<double>()));
    EXPECT_TRUE(std::isnan(to_double(got.dx)[15 * 48]));
    EXPECT_TRUE(std::isnan(to_double(got.dw)[0]));
    EXPECT_TRUE(std::isfinite(got.nll.data<float>()[14]));
  }
}

// More rows than a chunk takes: the rows around the seam against float64, all of dw against the same rows in two calls.
TEST_F(CudaCrossEntropyOnce, ChunksOfRowsAddUp) {
  constexpr int64_t kVocabulary = 262144;  // chunks of 256 rows
  const Problem p(cpu, cuda, {300, 8, kVocabulary, DType::kBF16});
  const auto out = p.outputs(cpu, cuda);
  const std::array<Tensor, 4> in = {to_device(cuda, p.x), to_device(cuda, p.w), to_device(cuda, p.labels),
                                    to_device(cuda, p.weight)};
  p.run_on(cuda, in, out);
  Problem first = p, second = p;
  first.c.tokens = 256;
  second.c = {44, 8, kVocabulary, DType::kBF16, true};
  auto a = first.outputs(cpu, cuda);
  first.run_on(cuda, {in[0].rows(0, 256), in[1], in[2].rows(0, 256), in[3].rows(0, 256)},
               {a.nll, a.loss, a.dx.rows(0, 256), a.dw});
  auto b = second.outputs(cpu, cuda);
  second.run_on(cuda, {in[0].rows(256, 44), in[1], in[2].rows(256, 44), in[3].rows(256, 44)},
                {b.nll, a.loss, b.dx.rows(0, 44), a.dw});
  EXPECT_TRUE(same_bits(to_host(cpu, out.nll.rows(0, 256)), to_host(cpu, a.nll)));
  EXPECT_TRUE(same_bits(to_host(cpu, out.nll.rows(256, 44)), to_host(cpu, b.nll)));
  EXPECT_TRUE(same_bits(to_host(cpu, out.dx.rows(256, 44)), to_host(cpu, b.dx.rows(0, 44))));
  EXPECT_TRUE(same_bits(to_host(cpu, out.dw), to_host(cpu, a.dw)));
  const double whole = *to_host(cpu, out.loss).data<double>(), sum = *to_host(cpu, a.loss).data<double>();
  EXPECT_NEAR(whole, sum, 1e-12 * std::abs(whole));
}

TEST_F(CudaCrossEntropyOnce, NoTokens) {
  const Problem p(cpu, cuda, {0, 8, 24, DType::kBF16});
  const auto out = p.outputs(cpu, cuda);
  p.run(cuda, out);
  EXPECT_TRUE(within(to_host(cpu, out.dw), std::vector<double>(8 * 24, 0.0), 0.0));
  EXPECT_EQ(*to_host(cpu, out.loss).data<double>(), 5.0);
}

TEST_F(CudaCrossEntropyOnce, ReplayGivesTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Problem p(cpu, cuda, {300, 48, 33, dtype});
    const auto eager = p.outputs(cpu, cuda), captured = p.outputs(cpu, cuda);
    const std::array<Tensor, 4> in = {to_device(cuda, p.x), to_device(cuda, p.w), to_device(cuda, p.labels),
                                      to_device(cuda, p.weight)};
    p.run_on(cuda, in, eager);
    p.run_on(cuda, in, eager);
    replay_captured(int64_t{64} << 20, 2, [&](Context& ctx) { p.run_on(ctx, in, captured); });
    EXPECT_TRUE(same_bits(to_host(cpu, captured.nll), to_host(cpu, eager.nll)));
    EXPECT_TRUE(same_bits(to_host(cpu, captured.loss), to_host(cpu, eager.loss)));
    EXPECT_TRUE(same_bits(to_host(cpu, captured.dx), to_host(cpu, eager.dx)));
    EXPECT_TRUE(same_bits(to_host(cpu, captured.dw), to_host(cpu, eager.dw)));
  }
}

TEST(CrossEntropyPlan, MetaTakesTheCardsScratch) {
  Context meta = meta_context(Precision::kBF16);
  meta.planned = Device{DeviceKind::kCuda};
  const StepState state;
  const Tensor x = meta.empty({100, 16}), w = meta.empty({33, 16}), labels = meta.empty({100}, DType::kI32),
               weight = meta.empty({100}, DType::kF32), loss = meta.empty({1}, DType::kF64),
               dw = meta.empty({33, 16}, DType::kF32);
  const int64_t before = meta.arena->in_use();
  ops::linear_cross_entropy(meta, {.x = x,
                                   .w = w,
                                   .labels = labels,
                                   .loss_weight = weight,
                                   .nll = weight,
                                   .loss = loss,
                                   .state = &state,
                                   .dx = x,
                                   .dw = {dw, false}});
  // 100 rows of 40 f32 and of 40 bf16, in blocks of 256 bytes, and the products' workspace.
  EXPECT_EQ(meta.arena->peak() - before, 16128 + 8192 + (int64_t{32} << 20));
}

}  // namespace
}  // namespace cistron::test
