#include "cistron/ops/cross_entropy.h"

#include <gtest/gtest.h>

#include "cistron/cpu/fast/onednn.h"
#include "tests/ops/cross_entropy_bounds.h"

namespace cistron::test {
namespace {

using cpu::ref::Matrix;

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
    for (const auto& [tokens, hidden, vocabulary] :
         {std::tuple{1, 8, 1}, {1, 20, 33}, {3, 80, 16}, {300, 48, 33}, {131, 20, 270}, {70, 33, 5}})
      for (const bool accumulate : {false, true}) all.push_back({tokens, hidden, vocabulary, dtype, accumulate});
  // Several chunks of rows.
  all.push_back({200, 12, 33000, DType::kF32, false});
  return all;
}

constexpr float kScale = 0.037F;

class CrossEntropy : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (c.dtype == DType::kBF16 && !cpu::has_fast_bf16()) GTEST_SKIP() << "no bf16 products on this processor";
    for (int64_t t = 1; t < c.tokens; t += 3) labels.span<int32_t>()[static_cast<size_t>(t)] = -1;
  }
  void run(Context& on) {
    *loss.data<double>() = 5.0;
    ops::linear_cross_entropy(on, {.x = x,
                                   .w = w,
                                   .labels = labels,
                                   .loss_weight = weight,
                                   .nll = nll,
                                   .loss = loss,
                                   .state = &state,
                                   .dx = dx,
                                   .dw = {dw, c.accumulate}});
  }
  [[nodiscard]] CrossEntropyOperands operands() const { return {x, w, labels, weight, static_cast<double>(kScale)}; }
  [[nodiscard]] cpu::ref::CrossEntropy<double> reference() const { return operands().reference(); }
  [[nodiscard]] CrossEntropyBounds bounds(const cpu::ref::CrossEntropy<double>& want) const { return operands().bounds(want); }

  const Case c = GetParam();
  CpuContext ctx{2};
  Tensor x = random_tensor(ctx, {c.tokens, c.hidden}, c.dtype, 1),
         w = random_tensor(ctx, {c.vocabulary, c.hidden}, c.dtype, 2, 0.3),
         labels = random_ints(ctx, {c.tokens}, 3, static_cast<int32_t>(c.vocabulary)),
         weight = random_tensor(ctx, {c.tokens}, DType::kF32, 4), nll = poisoned(ctx, {c.tokens}, DType::kF32),
         loss = poisoned(ctx, {1}, DType::kF64), dx = poisoned(ctx, {c.tokens, c.hidden}, c.dtype),
         dw = c.accumulate ? random_tensor(ctx, {c.vocabulary, c.hidden}, DType::kF32, 5)
                           : poisoned(ctx, {c.vocabulary, c.hidden}, DType::kF32);
  StepState state{.loss_scale = kScale};
};

TEST_P(CrossEntropy, LossAndGradients) {
  const auto old = to_double(dw);
  run(ctx);
  auto want = reference();
  CrossEntropyBounds bound = bounds(want);
  EXPECT_TRUE(within(nll, want.nll, bound.nll));
  double loss_bound = 1e-12;
  const auto weights = to_double(weight);
  for (size_t t = 0; t < weights.size(); ++t) loss_bound += std::abs(weights[t]) * bound.nll[t];
  EXPECT_NEAR(*loss.data<double>(), 5.0 + want.loss, loss_bound);
  EXPECT_TRUE(within(dx, want.dx.data, bound.dx));
  for (size_t i = 0; c.accumulate && i < old.size(); ++i) {
    want.dw.data[i] += old[i];
    bound.dw[i] += (std::abs(old[i]) + std::abs(want.dw.data[i])) * unit_roundoff(DType::kF32);
  }
  EXPECT_TRUE(within(dw, want.dw.data, bound.dw));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropy, testing::ValuesIn(cases()));

class CrossEntropyOnce : public CrossEntropy {};
INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropyOnce, testing::Values(Case{300, 48, 33}));

TEST_P(CrossEntropyOnce, ForwardAloneGivesTheSameBits) {
  run(ctx);
  const Tensor alone = poisoned(ctx, {c.tokens}, DType::kF32);
  double total = 5.0;
  const Tensor sum = Tensor::view(std::span(&total, 1));
  ops::linear_cross_entropy(ctx, {.x = x, .w = w, .labels = labels, .loss_weight = weight, .nll = alone, .loss = sum});
  EXPECT_TRUE(same_bits(nll, alone));
  EXPECT_EQ(*loss.data<double>(), total);
}

TEST_P(CrossEntropyOnce, RowsAndThreadsDoNotChangeBits) {
  run(ctx);
  CpuContext three(3);
  const Tensor part = poisoned(ctx, {37}, DType::kF32), dx_part = poisoned(ctx, {37, c.hidden}, c.dtype),
               other = poisoned(ctx, dw.shape(), DType::kF32), sum = tensor_of(ctx, {1}, DType::kF64, {0.0});
  ops::linear_cross_entropy(three, {.x = x.rows(101, 37),
                                    .w = w,
                                    .labels = labels.rows(101, 37),
                                    .loss_weight = weight.rows(101, 37),
                                    .nll = part,
                                    .loss = sum,
                                    .state = &state,
                                    .dx = dx_part,
                                    .dw = {other, false}});
  EXPECT_TRUE(same_bits(part, nll.rows(101, 37)));
  EXPECT_TRUE(same_bits(dx_part, dx.rows(101, 37)));
  const Tensor first = copy_of(ctx, dw);
  run(three);
  EXPECT_TRUE(same_bits(dw, first));
}

TEST_P(CrossEntropyOnce, AWrongLabelFails) {
  run(ctx);
  auto& label = labels.span<int32_t>()[0];
  label = (label + 1) % static_cast<int32_t>(c.vocabulary);
  const auto wrong = reference();
  const CrossEntropyBounds bound = bounds(wrong);
  EXPECT_FALSE(within(nll, wrong.nll, bound.nll));
  EXPECT_FALSE(within(dx, wrong.dx.data, bound.dx));
  EXPECT_FALSE(within(dw, wrong.dw.data, bound.dw));
}

TEST_P(CrossEntropyOnce, ALabelOutsideTheVocabularyIsNamed) {
  labels.span<int32_t>()[17] = 33;
  EXPECT_NE(error_of([&] { run(ctx); }).find("label 33: position 17"), std::string::npos);
}

TEST(CrossEntropyReference, GradientIsTheDifferenceQuotient) {
  CpuContext ctx;
  const auto x = to_matrix(random_tensor(ctx, {5, 4}, DType::kF64, 1)), w = to_matrix(random_tensor(ctx, {7, 4}, DType::kF64, 2));
  const std::vector<int32_t> labels{3, -1, 0, 6, 6};
  const std::vector<double> weight{1.0, 2.0, -0.5, 0.25, 3.0};
  const auto loss = [&](const Matrix<double>& a, const Matrix<double>& b) {
    return 0.5 * cpu::ref::linear_cross_entropy(a, b, labels, weight, 0.5).loss;
  };
  const auto got = cpu::ref::linear_cross_entropy(x, w, labels, weight, 0.5);
  const auto dx = numeric_gradient([&](const std::vector<double>& v) { return loss({5, 4, v}, w); }, x.data);
  const auto dw = numeric_gradient([&](const std::vector<double>& v) { return loss(x, {7, 4, v}); }, w.data);
  // h^2 times a third derivative of order 1 to 100, and 1e-16 / h of rounding.
  EXPECT_TRUE(within(got.dx.data, dx, std::vector<double>(dx.size(), 1e-8)));
  EXPECT_TRUE(within(got.dw.data, dw, std::vector<double>(dw.size(), 1e-8)));
  EXPECT_FALSE(within(got.dw.data, cpu::ref::linear_cross_entropy(x, w, labels, weight, 0.5001).dw.data,
                      std::vector<double>(dw.size(), 1e-8)));
}

TEST(CrossEntropyEdges, NoTokens) {
  CpuContext ctx;
  StepState state;
  const Tensor none = ctx.empty({0, 4}), w = random_tensor(ctx, {3, 4}, DType::kF32, 1), dw = poisoned(ctx, {3, 4}, DType::kF32),
               nothing = ctx.empty({0}), no_labels = ctx.empty({0}, DType::kI32), loss = tensor_of(ctx, {1}, DType::kF64, {2.5});
  ops::linear_cross_entropy(ctx, {.x = none,
                                  .w = w,
                                  .labels = no_labels,
                                  .loss_weight = nothing,
                                  .nll = nothing,
                                  .loss = loss,
                                  .state = &state,
                                  .dx = none,
                                  .dw = {dw, false}});
  EXPECT_TRUE(within(dw, std::vector<double>(12, 0.0), 0.0));
  EXPECT_EQ(*loss.data<double>(), 2.5);
}

TEST(CrossEntropyChecks, MetaTakesTheSameScratch) {
  const auto peak = [](Context& ctx) {
    StepState state;
    const Tensor x = random_tensor(ctx, {600, 8}, DType::kF32, 1), w = random_tensor(ctx, {40, 8}, DType::kF32, 1),
                 labels = random_ints(ctx, {600}, 2, 40), f = random_tensor(ctx, {600}, DType::kF32, 3),
                 nll = ctx.empty({600}, DType::kF32), loss = tensor_of(ctx, {1}, DType::kF64, {0.0}), dw = ctx.empty({40, 8});
    ops::linear_cross_entropy(ctx, {.x = x,
                                    .w = w,
                                    .labels = labels,
                                    .loss_weight = f,
                                    .nll = nll,
                                    .loss = loss,
                                    .state = &state,
                                    .dx = ctx.empty({600, 8}),
                                    .dw = {dw, false}});
    EXPECT_NE(error_of([&] {
                ops::linear_cross_entropy(ctx, {.x = x, .w = x, .labels = labels, .loss_weight = f, .nll = f, .loss = f});
              }).find("[linear_cross_entropy] loss"),
              std::string::npos);
    return ctx.arena->peak();
  };
  Context meta = meta_context();
  CpuContext real;
  EXPECT_EQ(peak(meta), peak(real));
}

}  // namespace
}  // namespace cistron::test
