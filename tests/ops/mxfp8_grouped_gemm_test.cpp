// MXFP8 products against float64 on the decoded operands, with the negative controls that layouts and schedules can get wrong.
#include "cistron/ops/mxfp8_grouped_gemm.h"

#include "cistron/cpu/ref/grouped_gemm.h"
#include "tests/ops/mxfp8_support.h"

namespace cistron {
namespace {

using cpu::ref::Matrix;
using test::CpuContext;

struct Param {
  int64_t group;
  std::vector<int64_t> counts;
  int64_t n, k;
};

/// Sums of at most 300 random terms in f32: sqrt(300) 2^-24 = 1e-6 is likely, 300 2^-24 = 1.8e-5 the worst of any element.
constexpr double kTolerance = 1e-5;

class Mxfp8GroupedGemm : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    routed_ = test::mxfp8_groups(ctx_, p_.counts);
    x_ = activation(p_.k, 1);
    dy_ = activation(p_.n, 2);
    const Tensor w = test::random_tensor(ctx_, {experts(), p_.n, p_.k}, DType::kBF16, 3, 0.1);
    w_ = ops::mxfp8_empty_weights(ctx_, w.shape(), p_.group, 2);
    ops::mxfp8_quantize_weights(ctx_, {.w = w, .out = w_});
  }
  [[nodiscard]] int64_t experts() const { return static_cast<int64_t>(p_.counts.size()); }
  ops::MxTensor activation(int64_t width, uint64_t seed) { return test::mxfp8_routed(ctx_, routed_, width, p_.group, seed); }
  double forward_error(const ops::MxOperand& x, const ops::MxOperand& w, const ops::MxOperand& want_x,
                       const ops::MxOperand& want_w) {
    const Tensor out = test::poisoned(ctx_, {x.rows(), w.rows()}, DType::kF32);
    ops::mxfp8_grouped_gemm(ctx_, {.x = x, .w = w, .groups = routed_.groups, .out = out});
    const auto want = cpu::ref::grouped_gemm_forward(cpu::ref::mxfp8_decode(want_x), cpu::ref::mxfp8_decode(want_w), w.rows(),
                                                     routed_.segments);
    return test::relative_error(test::rows_in_use(out, routed_.segments), test::rows_in_use(want, routed_.segments));
  }

  Param p_ = GetParam();
  CpuContext ctx_{2};
  test::Mxfp8Groups routed_;
  ops::MxTensor x_, dy_, w_;
};

TEST_P(Mxfp8GroupedGemm, Forward) { EXPECT_LT(forward_error(x_.rows, w_.rows, x_.rows, w_.rows), kTolerance); }
TEST_P(Mxfp8GroupedGemm, Dgrad) { EXPECT_LT(forward_error(dy_.rows, w_.columns, dy_.rows, w_.columns), kTolerance); }

TEST_P(Mxfp8GroupedGemm, Bf16OutputIsTheRoundedOne) {
  const Tensor f32 = test::poisoned(ctx_, {x_.rows.rows(), p_.n}, DType::kF32);
  const Tensor rounded = test::poisoned(ctx_, f32.shape(), DType::kBF16);
  ops::mxfp8_grouped_gemm(ctx_, {.x = x_.rows, .w = w_.rows, .groups = routed_.groups, .out = f32});
  ops::mxfp8_grouped_gemm(ctx_, {.x = x_.rows, .w = w_.rows, .groups = routed_.groups, .out = rounded});
  cpu::ref::for_rows(routed_.segments, [&](int64_t, int64_t r) {
    for (int64_t i = r * p_.n; i < (r + 1) * p_.n; ++i) ASSERT_EQ(rounded.data<bf16>()[i].bits, bf16(f32.data<float>()[i]).bits);
  });
}

TEST_P(Mxfp8GroupedGemm, Wgrad) {
  const auto want = cpu::ref::grouped_gemm_wgrad(test::transposed(cpu::ref::mxfp8_decode(dy_.columns)),
                                                 test::transposed(cpu::ref::mxfp8_decode(x_.columns)), routed_.segments);
  const Tensor out = test::poisoned(ctx_, {experts(), p_.n, p_.k}, DType::kF32);
  ops::mxfp8_grouped_wgrad(ctx_, {.dy = dy_.columns, .x = x_.columns, .groups = routed_.groups, .out = out});
  EXPECT_LT(test::relative_error(test::to_double(out), want.data), kTolerance);
  ops::mxfp8_grouped_wgrad(ctx_, {.dy = dy_.columns, .x = x_.columns, .groups = routed_.groups, .out = out, .accumulate = true});
  auto twice = want.data;
  for (double& value : twice) value *= 2;
  EXPECT_LT(test::relative_error(test::to_double(out), twice), kTolerance);
}

TEST_P(Mxfp8GroupedGemm, NegativeControlsFail) {
  if (routed_.total() < 200) return;
  auto swapped = x_.rows;
  swapped.scales = test::copy_of(ctx_, x_.rows.scales);
  swapped.scales.data<uint8_t>()[0] += 1;  // one scale doubled
  EXPECT_GT(forward_error(swapped, w_.rows, x_.rows, w_.rows), kTolerance);
  auto omitted = w_.rows;
  omitted.elements = test::copy_of(ctx_, w_.rows.elements);
  const int64_t busy = routed_.busiest() * p_.n * p_.k;
  std::fill_n(omitted.elements.data<uint8_t>() + busy, p_.group, uint8_t{0});  // one partial sum of one column
  EXPECT_GT(forward_error(x_.rows, omitted, x_.rows, w_.rows), kTolerance);
  routed_.segments.starts[static_cast<size_t>(routed_.busiest())] += 1;  // an expert's offset off by one
  const Tensor out = test::poisoned(ctx_, {experts(), p_.n, p_.k}, DType::kF32);
  ops::mxfp8_grouped_wgrad(ctx_, {.dy = dy_.columns, .x = x_.columns, .groups = routed_.groups, .out = out});
  const auto shifted = cpu::ref::grouped_gemm_wgrad(test::transposed(cpu::ref::mxfp8_decode(dy_.columns)),
                                                    test::transposed(cpu::ref::mxfp8_decode(x_.columns)), routed_.segments);
  EXPECT_GT(test::relative_error(test::to_double(out), shifted.data), kTolerance);
}

TEST(Mxfp8GroupedGemmRules, RefusesRowsThatAreNotTheGroups) {
  CpuContext ctx;
  const auto routed = test::mxfp8_groups(ctx, {5, 7});
  const int64_t rows = routed.groups.max_rows() + 128;
  const auto x = ops::mxfp8_empty(ctx, rows, 128, 128);
  const auto w = ops::mxfp8_empty_weights(ctx, {2, 128, 128}, 128, 1);
  const Tensor y = ctx.empty({rows, 128}, DType::kF32);
  const Tensor dw = ctx.empty({2, 128, 128}, DType::kF32);
  const auto forward = [&] { ops::mxfp8_grouped_gemm(ctx, {.x = x.rows, .w = w.rows, .groups = routed.groups, .out = y}); };
  const auto wgrad = [&] {
    ops::mxfp8_grouped_wgrad(ctx, {.dy = x.columns, .x = x.columns, .groups = routed.groups, .out = dw});
  };
  EXPECT_NE(test::error_of(forward).find("the groups"), std::string::npos);
  EXPECT_NE(test::error_of(wgrad).find("contractions of"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Groups, Mxfp8GroupedGemm,
                         testing::Values(Param{128, {0, 1, 127, 128, 129}, 256, 128}, Param{128, {0, 300, 0}, 256, 256},
                                         Param{128, {5}, 256, 128}, Param{128, {0, 0}, 256, 128},
                                         Param{32, {0, 1, 127, 128, 129}, 224, 96}, Param{32, {40, 200}, 64, 160}));

}  // namespace
}  // namespace cistron
