// The products beside SwiGLU on Hopper against float64, pad rows and outputs poisoned.
#include <gmock/gmock.h>

#include "tests/cuda/support.h"
#include "tests/ops/swiglu_products.h"

namespace cistron::test {
namespace {

/// Fewer than a tile of rows and columns, and some tiles of both with a part of one; an odd number of tiles.
constexpr int64_t kWidths[] = {24, 136, 648};
constexpr int64_t kHidden = 72;

class CudaGroupedSwiglu : public testing::TestWithParam<RoutingCase> {
 protected:
  void SetUp() override {
    CISTRON_NEEDS_CARD();
    cuda_.precision = Precision::kBF16;
    if (const auto why = ops::grouped_swiglu_refusal(cuda_, kHidden, 128); !why.empty()) GTEST_SKIP() << why;
  }
  ops::Groups on_device(const ops::Groups& host) const {
    return {.starts = to_device(cuda_, host.starts),
            .counts = to_device(cuda_, host.counts),
            .source_row = to_device(cuda_, host.source_row),
            .weight = to_device(cuda_, host.weight),
            .token_rows = to_device(cuda_, host.token_rows)};
  }
  std::vector<Tensor> forward(const SwigluCase& in) {
    const Tensor gate_up = poisoned_on_device(cuda_, {in.groups.packed_rows(), 2 * in.width}, in.dtype);
    const Tensor act = poisoned_on_device(cuda_, {in.groups.max_rows(), in.width}, in.dtype);
    ops::grouped_swiglu_forward(cuda_, {.x = to_device(cuda_, in.x),
                                        .w = to_device(cuda_, in.w),
                                        .groups = on_device(in.groups),
                                        .gate_up = gate_up,
                                        .act = act,
                                        .bias = in.bias.defined() ? to_device(cuda_, in.bias) : Tensor{}});
    return {to_host(cpu_, gate_up), to_host(cpu_, act)};
  }
  SwigluOutputs backward(const SwigluCase& in) {
    const Tensor dgate_up = poisoned_on_device(cuda_, {in.groups.max_rows(), 2 * in.width}, in.dtype);
    const Tensor act = poisoned_on_device(cuda_, {in.groups.max_rows(), in.width}, in.dtype);
    const Tensor dweight = poisoned_on_device(cuda_, {in.groups.max_rows()}, DType::kF32);
    ops::grouped_swiglu_backward(cuda_, {.dy = to_device(cuda_, in.x),
                                         .w = to_device(cuda_, in.w),
                                         .gate_up = to_device(cuda_, in.gate_up),
                                         .groups = on_device(in.groups),
                                         .dgate_up = dgate_up,
                                         .act = act,
                                         .dweight = dweight});
    return {to_host(cpu_, dgate_up), to_host(cpu_, act), to_host(cpu_, dweight)};
  }

  CpuContext cpu_{2};
  CudaContext cuda_;
};

TEST_P(CudaGroupedSwiglu, Forward) {
  for (const int64_t width : kWidths) {
    const SwigluCase in(cpu_, GetParam(), kHidden, width, false, DType::kBF16);
    const auto out = forward(in);
    EXPECT_TRUE(forward_within(in, out[0], out[1])) << width;
    EXPECT_FALSE(forward_within(in, out[0], out[1], 1.02));
    const auto again = forward(in);
    EXPECT_TRUE(same_bits(again[0], out[0]));
    EXPECT_TRUE(same_bits(again[1].rows(0, in.used()), out[1].rows(0, in.used())));
    const bool overwritten = overwrite_neighbours(out[0], in.groups);
    EXPECT_EQ(static_cast<bool>(forward_within(in, out[0], out[1])), !overwritten);
  }
}

TEST_P(CudaGroupedSwiglu, ForwardWithBiases) {
  for (const int64_t width : kWidths) {
    SwigluCase in(cpu_, GetParam(), kHidden, width, false, DType::kBF16);
    in.bias = random_tensor(cpu_, {in.groups.num_experts(), 2 * width}, DType::kF32, 7);
    const auto out = forward(in);
    EXPECT_TRUE(forward_within(in, out[0], out[1])) << width;
    in.bias = of_wrong_experts(cpu_, in.bias);
    EXPECT_EQ(static_cast<bool>(forward_within(in, out[0], out[1])), in.groups.num_experts() == 1);
  }
}

TEST_P(CudaGroupedSwiglu, Backward) {
  for (const int64_t width : kWidths) {
    const SwigluCase in(cpu_, GetParam(), kHidden, width, true, DType::kBF16);
    const SwigluOutputs out = backward(in);
    EXPECT_TRUE(backward_within(in, out)) << width;
    EXPECT_FALSE(backward_within(in, out, 1.1));
    const SwigluOutputs again = backward(in);
    EXPECT_TRUE(same_bits(again.dgate_up.rows(0, in.used()), out.dgate_up.rows(0, in.used())));
    EXPECT_TRUE(same_bits(again.dweight.rows(0, in.used()), out.dweight.rows(0, in.used())));
    const bool overwritten = overwrite_neighbours(in.gate_up, in.groups);
    EXPECT_EQ(static_cast<bool>(backward_within(in, out)), !overwritten);
  }
}

// One cluster computes all tiles, so that staging and barriers are used again and again.
TEST_P(CudaGroupedSwiglu, OnOneCluster) {
  const SwigluCase forward_case(cpu_, GetParam(), kHidden, 648, false, DType::kBF16);
  const SwigluCase backward_case(cpu_, GetParam(), kHidden, 648, true, DType::kBF16);
  cuda_.sm_budget = 2;
  const auto out = forward(forward_case);
  EXPECT_TRUE(forward_within(forward_case, out[0], out[1]));
  EXPECT_TRUE(backward_within(backward_case, backward(backward_case)));
}

TEST_P(CudaGroupedSwiglu, RefusesF32) {
  const SwigluCase in(cpu_, GetParam(), kHidden, 24, false, DType::kF32);
  EXPECT_THAT(error_of([&] { forward(in); }), testing::HasSubstr("[grouped_swiglu_forward] operands of f32"));
}

INSTANTIATE_TEST_SUITE_P(Routings, CudaGroupedSwiglu, testing::ValuesIn(packed_cases(128)));

}  // namespace
}  // namespace cistron::test
