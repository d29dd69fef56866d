// The products beside SwiGLU in MXFP8 on Hopper: the bits of their parts on the same card, and float64; pad rows and outputs
// poisoned.
#include "cistron/ops/mxfp8_grouped_gemm.h"
#include "cistron/ops/swiglu.h"
#include "tests/cuda/support.h"
#include "tests/ops/mxfp8_swiglu_products.h"

namespace cistron::test {
namespace {

/// One tile of columns, and an odd number of them.
constexpr int64_t kWidths[] = {128, 384};
constexpr int64_t kHidden = 256;

class CudaMxfp8GroupedSwiglu : public OnCard, public testing::WithParamInterface<RoutingCase> {
 protected:
  void SetUp() override {
    OnCard::SetUp();
    if (IsSkipped()) return;
    if (const auto why = ops::mxfp8_grouped_swiglu_refusal(cuda_, 128, kHidden, 128); !why.empty()) GTEST_SKIP() << why;
  }

  ops::MxOperand host_of(ops::MxOperand operand) const {
    operand.elements = host(operand.elements);
    operand.scales = host(operand.scales);
    return operand;
  }
  Mxfp8SwigluForwardOutputs poisoned_forward(const Mxfp8SwigluCase& in) const {
    auto out = forward_outputs(cuda_, in);
    for (const Tensor& t : {out.gate_up, out.act.elements, out.act.scales}) poison_on_device(t);
    return out;
  }
  Mxfp8SwigluForwardOutputs host_of(const Mxfp8SwigluForwardOutputs& out) const { return {host(out.gate_up), host_of(out.act)}; }
  Tensor bias_of(const Mxfp8SwigluCase& in) const { return in.bias.defined() ? device(in.bias) : Tensor{}; }
  Mxfp8SwigluForwardOutputs fused_forward(const Mxfp8SwigluCase& in, const ops::MxOperand& w) {
    const auto out = poisoned_forward(in);
    ops::mxfp8_grouped_swiglu_forward(
        cuda_, {to_device(cuda_, in.x), to_device(cuda_, w), device(in.groups), out.gate_up, out.act, bias_of(in)});
    return host_of(out);
  }
  Mxfp8SwigluForwardOutputs unfused_forward(const Mxfp8SwigluCase& in) {
    auto out = poisoned_forward(in);
    const ops::Groups groups = device(in.groups);
    out.gate_up = poisoned_there({in.groups.max_rows(), 2 * in.width}, DType::kBF16);
    const Tensor act = poisoned_there({in.groups.max_rows(), in.width}, DType::kBF16);
    const ops::MxTensor quantised{.rows = out.act, .columns = {}};
    ops::mxfp8_grouped_gemm(cuda_,
                            {to_device(cuda_, in.x), to_device(cuda_, in.w), groups, out.gate_up, {.values = bias_of(in)}});
    ops::scaled_swiglu_forward(cuda_, {out.gate_up, groups, act});
    ops::mxfp8_quantize(cuda_, {.x = act, .out = quantised, .starts = groups.starts});
    out = host_of(out);
    out.gate_up = packed(cpu_, out.gate_up, in.groups);
    return out;
  }

  Mxfp8SwigluBackwardOutputs poisoned_backward(const Mxfp8SwigluCase& in) const {
    auto out = backward_outputs(cuda_, in);
    for (const Tensor& t : {out.act.elements, out.act.scales, out.dweight}) poison_on_device(t);
    poison_on_device(out.dgate_up);
    return out;
  }
  Mxfp8SwigluBackwardOutputs host_of(const Mxfp8SwigluBackwardOutputs& out) const {
    return {to_host(cpu_, out.dgate_up), host_of(out.act), host(out.dweight), out.dbias.defined() ? host(out.dbias) : Tensor{}};
  }
  Mxfp8SwigluBackwardOutputs fused_backward(const Mxfp8SwigluCase& in, const ops::MxOperand& w, const GradSink& dbias = {}) {
    auto out = poisoned_backward(in);
    out.dbias = dbias.grad;
    ops::mxfp8_grouped_swiglu_backward(cuda_, {to_device(cuda_, in.x), to_device(cuda_, w), device(in.gate_up), device(in.groups),
                                               out.dgate_up, out.act, out.dweight, dbias});
    return host_of(out);
  }
  Mxfp8SwigluBackwardOutputs unfused_backward(const Mxfp8SwigluCase& in) {
    const auto out = poisoned_backward(in);
    const ops::Groups groups = device(in.groups);
    const Tensor gate_up = device(unpacked(cpu_, in.gate_up, in.groups));
    const Tensor d = poisoned_there({in.groups.max_rows(), in.width}, DType::kBF16);
    const Tensor dgate_up = poisoned_there(gate_up.shape(), DType::kBF16);
    const ops::MxTensor act{.rows = {}, .columns = out.act};
    ops::mxfp8_grouped_gemm(cuda_, {to_device(cuda_, in.x), to_device(cuda_, in.w), groups, d});
    ops::scaled_swiglu_backward(cuda_, {d, gate_up, groups, dgate_up, out.dweight});
    ops::mxfp8_quantize(cuda_, {.x = dgate_up, .out = out.dgate_up, .starts = groups.starts});
    ops::scaled_swiglu_forward(cuda_, {gate_up, groups, d});
    ops::mxfp8_quantize(cuda_, {.x = d, .out = act, .starts = groups.starts});
    return host_of(out);
  }
};

testing::AssertionResult same_forward(const Mxfp8SwigluCase& in, const Mxfp8SwigluForwardOutputs& a,
                                      const Mxfp8SwigluForwardOutputs& b) {
  const int64_t rows = rows_in_use(in.groups);
  if (auto same = same_bits(a.gate_up.rows(0, rows), b.gate_up.rows(0, rows)); !same) return same << " in gate_up";
  return same_bits(a.act, b.act);
}
/// All but dweight, which is summed in another order.
testing::AssertionResult same_backward(const Mxfp8SwigluBackwardOutputs& a, const Mxfp8SwigluBackwardOutputs& b) {
  if (auto same = same_bits(a.act, b.act); !same) return same << " in act";
  return same_bits(a.dgate_up, b.dgate_up);
}

TEST_P(CudaMxfp8GroupedSwiglu, Forward) {
  for (const int64_t width : kWidths) {
    const Mxfp8SwigluCase in(cpu_, GetParam(), kHidden, width, false);
    const auto out = fused_forward(in, in.w);
    EXPECT_TRUE(right(in, out)) << width;
    EXPECT_TRUE(same_forward(in, out, unfused_forward(in))) << width;
    EXPECT_TRUE(same_forward(in, out, fused_forward(in, in.w))) << width;
    const auto wrong = fused_forward(in, with_rotated_scales(cpu_, in.w));
    EXPECT_FALSE(right(in, wrong));
    EXPECT_FALSE(same_forward(in, wrong, out));
    EXPECT_FALSE(right(with_shifted_expert(cpu_, in), out));
    const bool overwritten = overwrite_neighbours(out.gate_up, in.groups);
    EXPECT_EQ(static_cast<bool>(right(in, out)), !overwritten);
  }
}

TEST_P(CudaMxfp8GroupedSwiglu, WithBiases) {
  Mxfp8SwigluCase in(cpu_, GetParam(), kHidden, 384, false);
  in.bias = random_tensor(cpu_, {in.groups.num_experts(), 2 * in.width}, DType::kF32, 5);
  const auto out = fused_forward(in, in.w);
  EXPECT_TRUE(right(in, out));
  EXPECT_TRUE(same_forward(in, out, unfused_forward(in)));
  in.bias = of_wrong_experts(cpu_, in.bias);
  EXPECT_EQ(static_cast<bool>(right(in, out)), in.groups.num_experts() == 1);

  const Mxfp8SwigluCase back(cpu_, GetParam(), kHidden, 384, true);
  GradSink dbias{.grad = poisoned_there(in.bias.shape(), DType::kF32)};
  auto grads = fused_backward(back, back.w, dbias);
  EXPECT_TRUE(right(back, grads));
  EXPECT_TRUE(same_backward(grads, fused_backward(back, back.w)));
  dbias.accumulate = true;
  const auto sums = to_double(fused_backward(back, back.w, dbias).dbias), once = to_double(grads.dbias);
  for (size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i], 2 * once[i]) << i;
  grads.dbias = of_wrong_experts(cpu_, grads.dbias);
  EXPECT_EQ(static_cast<bool>(right(back, grads)), in.groups.num_experts() == 1);
}

TEST_P(CudaMxfp8GroupedSwiglu, Backward) {
  for (const int64_t width : kWidths) {
    const Mxfp8SwigluCase in(cpu_, GetParam(), kHidden, width, true);
    const auto out = fused_backward(in, in.w);
    EXPECT_TRUE(right(in, out)) << width;
    EXPECT_TRUE(same_backward(out, unfused_backward(in))) << width;
    const auto again = fused_backward(in, in.w);
    EXPECT_TRUE(same_backward(out, again)) << width;
    EXPECT_TRUE(same_bits(out.dweight.rows(0, in.used()), again.dweight.rows(0, in.used())));
    const auto wrong = fused_backward(in, with_rotated_scales(cpu_, in.w));
    EXPECT_FALSE(right(in, wrong));
    EXPECT_FALSE(same_backward(wrong, out));
    EXPECT_FALSE(right(with_shifted_expert(cpu_, in), out));
    const bool overwritten = overwrite_neighbours(in.gate_up, in.groups);
    EXPECT_EQ(static_cast<bool>(right(in, out)), !overwritten);
  }
}

// One cluster computes all tiles, so that staging and barriers are used again and again.
TEST_P(CudaMxfp8GroupedSwiglu, OnOneCluster) {
  const Mxfp8SwigluCase in(cpu_, GetParam(), kHidden, 640, false);
  const auto want = fused_forward(in, in.w);
  cuda_.sm_budget = 2;
  EXPECT_TRUE(same_forward(in, fused_forward(in, in.w), want));
}

TEST_P(CudaMxfp8GroupedSwiglu, BadNumbersSurfaceAsInItsParts) {
  Mxfp8SwigluCase in(cpu_, GetParam(), kHidden, 384, true);
  const float odd[] = {NAN, INFINITY, -INFINITY, 0.0F, -0.0F, 0x1p-130F, 0x1.fcp127F, -300.0F};
  for (int64_t i = 0; i < in.gate_up.numel(); i += 97)
    if (i / (2 * in.width) < rows_in_use(in.groups))
      in.gate_up.data<bf16>()[i] = bf16(odd[i / 97 % static_cast<int64_t>(std::size(odd))]);
  EXPECT_TRUE(same_backward(fused_backward(in, in.w), unfused_backward(in)));
}

INSTANTIATE_TEST_SUITE_P(Routings, CudaMxfp8GroupedSwiglu, testing::ValuesIn(packed_cases(128)));

}  // namespace
}  // namespace cistron::test
