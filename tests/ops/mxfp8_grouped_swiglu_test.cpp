#include "cistron/ops/mxfp8_grouped_swiglu.h"

#include <gmock/gmock.h>

#include "cistron/ops/mxfp8_grouped_gemm.h"
#include "cistron/ops/swiglu.h"
#include "tests/ops/mxfp8_swiglu_products.h"

namespace cistron {
namespace {

using test::CpuContext, test::error_of, test::Mxfp8SwigluCase, test::poison, test::same_bits;
using testing::HasSubstr;

constexpr int64_t kHidden = 256;

class Mxfp8GroupedSwiglu : public testing::TestWithParam<test::RoutingCase> {
 protected:
  test::Mxfp8SwigluForwardOutputs forward(const Mxfp8SwigluCase& in, const ops::MxOperand& w) {
    auto out = test::forward_outputs(ctx_, in);
    for (const Tensor& t : {out.gate_up, out.act.elements, out.act.scales}) poison(t);
    ops::mxfp8_grouped_swiglu_forward(ctx_, {in.x, w, in.groups, out.gate_up, out.act, in.bias});
    return out;
  }
  test::Mxfp8SwigluBackwardOutputs backward(const Mxfp8SwigluCase& in, const ops::MxOperand& w) {
    auto out = test::backward_outputs(ctx_, in);
    for (const Tensor& t : {out.act.elements, out.act.scales, out.dweight}) poison(t);
    poison(out.dgate_up);
    out.dbias = test::poisoned(ctx_, {in.groups.num_experts(), 2 * in.width}, DType::kF32);
    ops::mxfp8_grouped_swiglu_backward(ctx_,
                                       {in.x, w, in.gate_up, in.groups, out.dgate_up, out.act, out.dweight, {.grad = out.dbias}});
    return out;
  }
  CpuContext ctx_{2};
};

TEST_P(Mxfp8GroupedSwiglu, Forward) {
  for (const int64_t width : {128, 384}) {
    const Mxfp8SwigluCase in(ctx_, GetParam(), kHidden, width, false);
    const auto out = forward(in, in.w);
    EXPECT_TRUE(right(in, out));
    EXPECT_FALSE(right(test::with_shifted_expert(ctx_, in), out));
    EXPECT_FALSE(right(in, forward(in, test::with_rotated_scales(ctx_, in.w))));
    const bool overwritten = test::overwrite_neighbours(out.gate_up, in.groups);
    EXPECT_EQ(static_cast<bool>(right(in, out)), !overwritten);
  }
}

TEST_P(Mxfp8GroupedSwiglu, ForwardWithBiases) {
  Mxfp8SwigluCase in(ctx_, GetParam(), kHidden, 384, false);
  in.bias = test::random_tensor(ctx_, {GetParam().experts, 2 * in.width}, DType::kF32, 5);
  const auto out = forward(in, in.w);
  EXPECT_TRUE(right(in, out));
  in.bias = GetParam().experts > 1 ? test::of_wrong_experts(ctx_, in.bias) : Tensor{};
  EXPECT_FALSE(right(in, out));
}

TEST_P(Mxfp8GroupedSwiglu, Backward) {
  for (const int64_t width : {128, 384}) {
    const Mxfp8SwigluCase in(ctx_, GetParam(), kHidden, width, true);
    const auto out = backward(in, in.w);
    EXPECT_TRUE(right(in, out));
    EXPECT_FALSE(right(test::with_shifted_expert(ctx_, in), out));
    EXPECT_FALSE(right(in, backward(in, test::with_rotated_scales(ctx_, in.w))));
    auto wrong = out;
    wrong.dbias = test::of_wrong_experts(ctx_, out.dbias);
    EXPECT_TRUE(GetParam().experts == 1 || !right(in, wrong));
    const bool overwritten = test::overwrite_neighbours(in.gate_up, in.groups);
    EXPECT_EQ(static_cast<bool>(right(in, out)), !overwritten);
  }
}

TEST_P(Mxfp8GroupedSwiglu, HasTheBitsOfItsParts) {
  const Mxfp8SwigluCase in(ctx_, GetParam(), kHidden, 128, true);
  const auto got = backward(in, in.w);
  auto want = test::backward_outputs(ctx_, in);
  poison(want.dgate_up);
  poison(want.dweight);
  const Tensor d = test::poisoned(ctx_, {in.groups.max_rows(), in.width}, DType::kBF16);
  const Tensor gate_up = test::unpacked(ctx_, in.gate_up, in.groups);
  const Tensor dgate_up = test::poisoned(ctx_, gate_up.shape(), DType::kBF16);
  ops::mxfp8_grouped_gemm(ctx_, {.x = in.x, .w = in.w, .groups = in.groups, .out = d});
  ops::scaled_swiglu_backward(ctx_, {d, gate_up, in.groups, dgate_up, want.dweight});
  ops::mxfp8_quantize(ctx_, {.x = dgate_up, .out = want.dgate_up, .starts = in.groups.starts});
  EXPECT_TRUE(same_bits(got.dgate_up, want.dgate_up));
  EXPECT_TRUE(same_bits(got.dweight, want.dweight));
  const GradSink dbias{.grad = test::copy_of(ctx_, got.dbias), .accumulate = true};
  const Tensor alone = test::poisoned(ctx_, got.dbias.shape(), DType::kF32);
  ops::grouped_bias_backward(ctx_, {.dy = dgate_up, .bias = {}, .groups = in.groups, .dbias = {.grad = alone}});
  EXPECT_TRUE(same_bits(got.dbias, alone));
  ops::mxfp8_grouped_swiglu_backward(ctx_, {in.x, in.w, in.gate_up, in.groups, want.dgate_up, want.act, want.dweight, dbias});
  for (int64_t i = 0; i < alone.numel(); ++i)
    ASSERT_NEAR(dbias.grad.data<float>()[i], 2 * alone.data<float>()[i], 1e-6 * std::abs(alone.data<float>()[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Routings, Mxfp8GroupedSwiglu, testing::ValuesIn(test::packed_cases(128)));

TEST(Mxfp8GroupedSwigluRules, ChecksShapesAlsoOnMeta) {
  Context ctx = test::meta_context();
  const ops::Groups groups = ops::empty_groups(ctx, 6, 2, 4);
  const ops::MxTensor x = ops::mxfp8_empty(ctx, 12, 256, 128), narrow = ops::mxfp8_empty(ctx, 12, 128, 128);
  const ops::MxTensor w = ops::mxfp8_empty_weights(ctx, {4, 512, 256}, 128, 2);
  const ops::MxTensor one_section = ops::mxfp8_empty_weights(ctx, {4, 512, 256}, 128, 1);
  const Tensor gate_up = ctx.empty({12, 512}, DType::kBF16), dweight = ctx.empty({12}, DType::kF32);
  const auto forward = [&](const ops::MxOperand& weights, const ops::MxOperand& act) {
    return error_of([&] { ops::mxfp8_grouped_swiglu_forward(ctx, {x.rows, weights, groups, gate_up, act}); });
  };
  EXPECT_EQ(forward(w.rows, x.rows), "");
  EXPECT_THAT(forward(w.rows, narrow.rows), HasSubstr("[mxfp8_grouped_swiglu_forward] w"));
  EXPECT_THAT(forward(one_section.rows, x.rows), HasSubstr("gate and up wanted"));
  const ops::MxTensor in_32 = ops::mxfp8_empty(ctx, 12, 256, 32);
  EXPECT_THAT(forward(w.rows, in_32.rows), HasSubstr("act has scale groups of 32: 128 wanted"));
  const ops::MxTensor down = ops::mxfp8_empty_weights(ctx, {4, 256, 256}, 128, 1), grads = ops::mxfp8_empty(ctx, 12, 512, 128);
  ops::mxfp8_grouped_swiglu_backward(ctx, {x.rows, down.columns, gate_up, groups, grads, x.columns, dweight});
  const ops::MxTensor one_copy = ops::mxfp8_empty(ctx, 12, 512, 128, {.rows = true, .columns = false});
  EXPECT_THAT(error_of([&] {
                ops::mxfp8_grouped_swiglu_backward(ctx, {x.rows, down.columns, gate_up, groups, one_copy, x.columns, dweight});
              }),
              HasSubstr("dgate_up transposed"));
}

TEST(Mxfp8GroupedSwigluRules, SaysWhyNot) {
  CpuContext ctx;
  EXPECT_EQ(ops::mxfp8_grouped_swiglu_refusal(ctx, 128, 256, 384), "");
  EXPECT_THAT(ops::mxfp8_grouped_swiglu_refusal(ctx, 32, 256, 384), HasSubstr("scale groups of 32"));
  EXPECT_THAT(ops::mxfp8_grouped_swiglu_refusal(ctx, 128, 256, 320), HasSubstr("320 are not multiples of 128"));
}

}  // namespace
}  // namespace cistron
