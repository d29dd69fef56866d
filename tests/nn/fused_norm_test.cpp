// The residual stream's norms, fused, against the same operations one by one.
#include "cistron/nn/fused_norm.h"

#include <gmock/gmock.h>

#include "cistron/nn/local_parameters.h"
#include "cistron/nn/residual.h"
#include "cistron/nn/rms_norm.h"
#include "tests/ops/mxfp8_support.h"

namespace cistron::nn {
namespace {

using test::random_tensor, test::same_bits, test::to_double, test::within;
using testing::HasSubstr, testing::Not;

constexpr int64_t kRows = 150, kHidden = 256;

Sequential norm_and_quantize(int64_t hidden = kHidden) {
  return Sequential{Residual{}, RmsNorm{{.name = "norm", .hidden = hidden}}, Quantize{}};
}

struct Pass {
  Flow flow, gradient;
  Tensor dw, before;  // the stream's gradient on entry
  int64_t saved = 0, peak = 0;
};

/// Forward and backward of a stream with a branch or, without `branch`, of the stream alone.
Pass run(Context& ctx, const Sequential& norm, bool branch, bool with_gradient = true) {
  LocalParameters parameters(norm.parameters(), ctx.precision, {.parameters = ctx.arena, .gradients = ctx.arena});
  ctx.parameters = &parameters;
  parameters.initialise(ctx, 5);
  const Tensor& w = parameters.entries()[0].master;
  const Tensor weights = random_tensor(ctx, w.shape(), DType::kF32, 4);
  std::copy_n(weights.data<float>(), w.numel(), w.data<float>());
  const Shape shape{kRows, kHidden};
  const auto random = [&](uint64_t seed) { return random_tensor(ctx, shape, ctx.activation_dtype(), seed, 2.0); };
  Pass pass{.flow = {.x = branch ? random(6) : Tensor(), .stream = random(7)}};
  Saved saved;
  norm.run(ctx, pass.flow, saved);
  pass.saved = saved.bytes();
  pass.before = random(8);
  pass.gradient.x = random(9);
  if (with_gradient) pass.gradient.stream = test::copy_of(ctx, pass.before);
  norm.run_back(ctx, pass.gradient, saved);
  EXPECT_TRUE(saved.empty());
  pass.dw = parameters.entries()[0].grad;
  return pass;
}

void expect_same_forward(const Flow& got, const Flow& want) {
  EXPECT_TRUE(same_bits(got.stream, want.stream));
  ASSERT_EQ(got.x.defined(), want.x.defined());
  if (got.x.defined())
    EXPECT_TRUE(same_bits(got.x, want.x));
  else
    EXPECT_TRUE(same_bits(got.mx, want.mx));
}

/// One by one the norm's gradient is rounded, and then its sum with the stream's; fused the sum alone.
std::vector<double> rounded_twice(const Tensor& sum, const Tensor& before) {
  const double u = sum.dtype() == DType::kBF16 ? 0x1p-8 : 0x1p-24;
  std::vector<double> bounds, b = to_double(before);
  for (const double x : to_double(sum)) bounds.push_back(1.01 * u * (3 * std::abs(x) + std::abs(b[bounds.size()])));
  return bounds;
}

class FusedNorms : public testing::TestWithParam<std::tuple<Precision, bool>> {};
INSTANTIATE_TEST_SUITE_P(Recipes, FusedNorms,
                         testing::Combine(testing::Values(Precision::kF32, Precision::kBF16, Precision::kMxfp8,
                                                          Precision::kMxfp8Group32),
                                          testing::Bool()));

TEST_P(FusedNorms, AreTheSameAsOneByOne) {
  const auto [precision, branch] = GetParam();
  test::CpuContext ctx(2, precision);
  const Sequential norm = norm_and_quantize();
  const Pass fused = run(ctx, norm, branch);
  ctx.fuse = false;
  const Pass unfused = run(ctx, norm, branch);
  EXPECT_EQ(fused.flow.x.defined(), precision != Precision::kMxfp8);
  expect_same_forward(fused.flow, unfused.flow);
  EXPECT_TRUE(same_bits(fused.dw, unfused.dw));
  EXPECT_TRUE(
      within(fused.gradient.stream, to_double(unfused.gradient.stream), rounded_twice(unfused.gradient.stream, fused.before)));
  EXPECT_EQ(fused.gradient.x.raw(), fused.gradient.stream.raw());  // the branch's gradient is the sum's
  EXPECT_EQ(fused.saved, unfused.saved);
  // control: a stream without the branch is another
  EXPECT_FALSE(same_bits(run(ctx, norm, !branch).flow.stream, fused.flow.stream));
}

TEST_P(FusedNorms, GiveTheGradientWhereThereIsNoneYet) {
  test::CpuContext ctx(2, std::get<0>(GetParam()));
  const Pass fused = run(ctx, norm_and_quantize(), std::get<1>(GetParam()), /*with_gradient=*/false);
  ctx.fuse = false;
  const Pass unfused = run(ctx, norm_and_quantize(), std::get<1>(GetParam()), /*with_gradient=*/false);
  EXPECT_TRUE(same_bits(fused.gradient.stream, unfused.gradient.stream));
}

TEST(FusedNorm, PlansSayWhatRunsAndWhatRefused) {
  const auto plan = [](const Sequential& norm, Precision precision, bool fuse = true) {
    return norm.plan({.precision = precision, .fuse = fuse});
  };
  const std::string whole = plan(norm_and_quantize(), Precision::kMxfp8);
  EXPECT_THAT(whole, HasSubstr("FusedNorm 256 to MXFP8: fuses 3"));
  EXPECT_THAT(whole, Not(HasSubstr("not fused")));
  const auto half = [&](const Sequential& norm, Precision precision, const char* why) {
    const std::string text = plan(norm, precision);
    EXPECT_THAT(text, HasSubstr("FusedNorm")) << text;
    EXPECT_THAT(text,
                HasSubstr("fuses 2\nQuantize: one operation\nresidual + RMSNorm + quantize: not fused, " + std::string(why)));
  };
  half(norm_and_quantize(), Precision::kBF16, "nothing is in MXFP8");
  half(norm_and_quantize(), Precision::kF32, "nothing is in MXFP8");
  half(norm_and_quantize(), Precision::kMxfp8Group32, "with scale groups of 32");
  half(norm_and_quantize(160), Precision::kMxfp8, "width 160 is not a multiple of 128");
  const Sequential no_residual{RmsNorm{{.name = "norm", .hidden = 256}}, Quantize{}};
  EXPECT_EQ(plan(no_residual, Precision::kMxfp8), "RmsNorm 256: one operation\nQuantize: one operation\n");
  EXPECT_THAT(plan(norm_and_quantize(), Precision::kMxfp8, false),
              HasSubstr("residual + RMSNorm: not fused, fusing is switched off"));
}

TEST(FusedNorm, ThatQuantisesWritesNoNormInBf16) {
  const auto peak = [](bool fuse) {
    Context ctx = test::meta_context(Precision::kMxfp8);
    ctx.fuse = fuse;
    const Sequential norm = norm_and_quantize();
    LocalParameters parameters(norm.parameters(), ctx.precision, {.parameters = ctx.arena, .gradients = ctx.arena});
    ctx.parameters = &parameters;
    Saved saved;
    Flow flow{.x = ctx.empty({kRows, kHidden}), .stream = ctx.empty({kRows, kHidden})};
    norm.run(ctx, flow, saved);
    return ctx.arena->peak();
  };
  EXPECT_GT(peak(false), peak(true));
}

TEST(FusedNorm, IsHeardByAnObserver) {
  test::CpuContext ctx(1, Precision::kMxfp8);
  std::vector<double> heard[2];
  for (const bool fuse : {false, true}) {
    ctx.fuse = fuse;
    ctx.observe = [&](std::string_view module, const Tensor& value) {
      if (module == "norm") heard[fuse ? 1 : 0] = to_double(value);
    };
    run(ctx, norm_and_quantize(), true);
  }
  EXPECT_FALSE(heard[0].empty());
  EXPECT_EQ(heard[0], heard[1]);
}

}  // namespace
}  // namespace cistron::nn
