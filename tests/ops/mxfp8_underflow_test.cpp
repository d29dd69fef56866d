// Counts of what MXFP8 loses, against the bytes' values one by one.
#include "cistron/ops/mxfp8_underflow.h"

#include "tests/ops/mxfp8_support.h"

namespace cistron {
namespace {

using test::CpuContext;

/// Of elements with |value| in (0, limit).
ops::Mxfp8Underflow reference(const ops::MxOperand& x, int64_t rows, double limit = 0x1p-6) {
  ops::Mxfp8Underflow found;
  const int64_t experts = x.is_weight() ? x.elements.dim(0) : 1;
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < x.depth(); ++k) {
        if (x.scales.data<uint8_t>()[x.scale_index(e, r, k)] == 0) continue;
        const double value = std::abs(cpu::ref::e4m3_value(x.elements.data<uint8_t>()[(e * x.rows() + r) * x.depth() + k]));
        ++found.elements;
        found.zero += value == 0 ? 1 : 0;
        found.subnormal += value > 0 && value < limit ? 1 : 0;
      }
  return found;
}

TEST(Mxfp8Underflow, CountsActivationsUpToTheLastSegment) {
  CpuContext ctx(3);
  for (const int64_t group : {128, 32}) {
    const Tensor x = test::mxfp8_values(ctx, {384, 256}, DType::kBF16, 21, /*odd=*/false);
    const Tensor starts = test::tensor_of(ctx, {3}, DType::kI32, {0, 128, 256});
    for (const int64_t row : {5, 130}) std::fill_n(x.data<bf16>() + row * 256, 256, bf16(0.0F));  // as a pad row
    const auto out = ops::mxfp8_empty(ctx, 384, 256, group);
    test::poison(out);
    ops::mxfp8_quantize(ctx, {.x = x, .out = out, .starts = starts});
    const auto got = ops::mxfp8_underflow(ctx, out.rows, starts);
    EXPECT_EQ(got.elements, 254 * 256);
    EXPECT_GT(got.zero, 0);
    EXPECT_GT(got.subnormal, 0);
    EXPECT_EQ(got, reference(out.rows, 256));
    EXPECT_NE(got, reference(out.rows, 256, 0x1p-7)) << "another limit is the same";
    EXPECT_EQ(ops::mxfp8_underflow(ctx, out.columns, {}).elements, reference(out.columns, 256).elements);
  }
}

TEST(Mxfp8Underflow, CountsWeights) {
  CpuContext ctx(2);
  for (const int64_t group : {128, 32}) {
    const Tensor w = test::mxfp8_values(ctx, {3, 256, 128}, DType::kF32, 22, /*odd=*/false);
    const auto out = ops::mxfp8_empty_weights(ctx, {3, 256, 128}, group, 2);
    ops::mxfp8_quantize_weights(ctx, {.w = w, .out = out});
    EXPECT_EQ(ops::mxfp8_underflow(ctx, out.rows), reference(out.rows, 256));
    EXPECT_EQ(ops::mxfp8_underflow(ctx, out.columns), reference(out.columns, 128));
    EXPECT_EQ(ops::mxfp8_underflow(ctx, out.rows).elements, 3 * 256 * 128);
  }
}

}  // namespace
}  // namespace cistron
