// The fast quantisers against the reference, bit for bit.
#include <gmock/gmock.h>

#include "cistron/ops/mxfp8_format.h"
#include "cistron/ops/rms_norm.h"
#include "tests/ops/mxfp8_support.h"

namespace cistron {
namespace {

using test::CpuContext;
using test::error_of;
using test::mxfp8_values;
using test::same_bits;

struct Param {
  int64_t group, rows, depth;
  DType dtype;
};

class Mxfp8Quantize : public testing::TestWithParam<Param> {
 protected:
  ops::MxTensor outputs() {
    const auto out = ops::mxfp8_empty(ctx_, GetParam().rows, GetParam().depth, GetParam().group);
    test::poison(out);
    return out;
  }
  int64_t padded() const { return (GetParam().rows + 127) / 128 * 128; }
  CpuContext ctx_{3};
};

TEST_P(Mxfp8Quantize, EqualsReference) {
  const Tensor x = mxfp8_values(ctx_, {GetParam().rows, GetParam().depth}, GetParam().dtype, 11);
  const auto got = outputs();
  const auto want = outputs();
  ops::mxfp8_quantize(ctx_, {.x = x, .out = got});
  test::reference_quantize(x, {}, padded(), want);
  EXPECT_TRUE(same_bits(got, want));
}

TEST_P(Mxfp8Quantize, GathersRows) {
  const int64_t tokens = 37;
  const Tensor x = mxfp8_values(ctx_, {tokens, GetParam().depth}, GetParam().dtype, 12);
  const Tensor source_row = test::random_ints(ctx_, {GetParam().rows}, 13, tokens + 5);
  for (int32_t& row : source_row.span<int32_t>()) row = row < tokens ? row : -1;
  const auto got = outputs();
  const auto want = outputs();
  ops::mxfp8_quantize(ctx_, {.x = x, .out = got, .source_row = source_row});
  test::reference_quantize(x, source_row, padded(), want);
  EXPECT_TRUE(same_bits(got, want));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Mxfp8Quantize,
                         testing::Values(Param{128, 1, 128, DType::kBF16}, Param{128, 127, 256, DType::kF32},
                                         Param{128, 300, 384, DType::kBF16}, Param{32, 129, 96, DType::kBF16},
                                         Param{32, 256, 160, DType::kF32}));

TEST(Mxfp8QuantizeSegments, RowsPastTheLastAreLeftAlone) {
  CpuContext ctx(2);
  const Tensor x = mxfp8_values(ctx, {300, 128}, DType::kF32, 14);
  const Tensor starts = test::tensor_of(ctx, {3}, DType::kI32, {0, 128, 128});
  for (const int64_t group : {128, 32}) {
    const auto got = ops::mxfp8_empty(ctx, 300, 128, group);
    const auto want = ops::mxfp8_empty(ctx, 300, 128, group);
    test::poison(got);
    test::poison(want);
    ops::mxfp8_quantize(ctx, {.x = x, .out = got, .starts = starts});
    test::reference_quantize(x, {}, 128, want);
    EXPECT_TRUE(same_bits(got, want));
  }
}

TEST(Mxfp8QuantizeNorm, EqualsTheNormQuantised) {
  CpuContext ctx(3);
  for (const Param& p : {Param{128, 300, 256, DType::kBF16}, Param{128, 127, 384, DType::kF32}, Param{128, 1, 128, DType::kBF16},
                         Param{128, 0, 128, DType::kBF16}}) {
    const Shape shape{p.rows, p.depth};
    const Tensor x = test::random_tensor(ctx, shape, p.dtype, 15);
    const Tensor w = test::random_tensor(ctx, {p.depth}, DType::kF32, 16),
                 other = test::random_tensor(ctx, {p.depth}, DType::kF32, 17);
    const Tensor y = test::poisoned(ctx, shape, p.dtype), rstd = test::poisoned(ctx, {p.rows}, DType::kF32);
    const Tensor rstd_alone = test::poisoned(ctx, {p.rows}, DType::kF32);
    ops::rms_norm_forward(ctx, {.x = x, .w = w, .out = y, .rstd = rstd});
    ops::rms_norm_forward(ctx, {.x = x, .w = w, .out = {}, .rstd = rstd_alone});
    EXPECT_TRUE(same_bits(rstd_alone, rstd));
    const auto quantized = [&](const Tensor& of, const Tensor& weight) {
      const auto out = ops::mxfp8_empty(ctx, p.rows, p.depth, 128);
      test::poison(out);
      ops::mxfp8_quantize(ctx, {.x = of, .out = out, .rstd = weight.defined() ? rstd : Tensor{}, .norm_weight = weight});
      return out;
    };
    const auto want = ops::mxfp8_empty(ctx, p.rows, p.depth, 128);
    test::poison(want);
    test::reference_quantize(y, {}, round_up(p.rows, 128), want);
    EXPECT_TRUE(same_bits(quantized(y, {}), want)) << p.rows;
    EXPECT_TRUE(same_bits(quantized(x, w), want)) << p.rows;
    EXPECT_EQ(same_bits(quantized(x, other), want) == true, p.rows == 0);
  }
}

TEST(Mxfp8QuantizeNorm, RefusesWhatItDoesNotDo) {
  CpuContext ctx;
  const Tensor x = ctx.empty({4, 128}), w = ctx.empty({128}), rstd = ctx.empty({4}), rows = test::random_ints(ctx, {4}, 1, 4);
  const auto refused = [&](int64_t group, const Tensor& source_row, const Tensor& weight) {
    const auto out = ops::mxfp8_empty(ctx, 4, 128, group);
    return error_of(
        [&] { ops::mxfp8_quantize(ctx, {.x = x, .out = out, .source_row = source_row, .rstd = rstd, .norm_weight = weight}); });
  };
  EXPECT_THAT(refused(32, {}, w), testing::HasSubstr("scale groups of 128, not 32"));
  EXPECT_THAT(refused(128, rows, w), testing::HasSubstr("not gathered"));
  EXPECT_THAT(refused(128, {}, rstd), testing::HasSubstr("norm_weight"));
}

TEST(Mxfp8QuantizeBf16, EveryValue) {
  CpuContext ctx;
  const Tensor x = ctx.empty({512, 128}, DType::kBF16);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<bf16>()[i].bits = static_cast<uint16_t>(i);
  for (const int64_t group : {128, 32}) {
    const auto got = ops::mxfp8_empty(ctx, 512, 128, group);
    const auto want = ops::mxfp8_empty(ctx, 512, 128, group);
    ops::mxfp8_quantize(ctx, {.x = x, .out = got});
    test::reference_quantize(x, {}, 512, want);
    EXPECT_TRUE(same_bits(got, want));
  }
}

TEST(Mxfp8Weights, EqualReference) {
  CpuContext ctx(2);
  struct Weights {
    int64_t group, sections;
    Shape shape;
  };
  const Weights all[] = {{128, 2, {2, 512, 256}}, {128, 1, {3, 160 * 4, 128}}, {32, 2, {2, 2 * 160, 224}}, {32, 1, {1, 96, 32}}};
  for (const auto& [group, sections, shape] : all)
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor w = mxfp8_values(ctx, shape, dtype, 21, shape[2] == 224);
      const auto got = ops::mxfp8_empty_weights(ctx, shape, group, sections);
      const auto want = ops::mxfp8_empty_weights(ctx, shape, group, sections);
      test::poison(got);
      ops::mxfp8_quantize_weights(ctx, {.w = w, .out = got});
      test::reference_quantize_weights(w, want);
      EXPECT_TRUE(same_bits(got, want)) << to_string(shape);
    }
}

TEST(Mxfp8Dequantize, IsExactAndNear) {
  CpuContext ctx(2);
  const Tensor x = mxfp8_values(ctx, {200, 256}, DType::kF32, 31, false);
  for (const int64_t group : {128, 32}) {
    const auto q = ops::mxfp8_empty(ctx, 200, 256, group);
    ops::mxfp8_quantize(ctx, {.x = x, .out = q});
    const Tensor out = test::poisoned(ctx, {200, 256}, DType::kF32);
    ops::mxfp8_dequantize(ctx, {.x = q.rows, .out = out});
    EXPECT_TRUE(test::within(out, cpu::ref::mxfp8_decode(q.rows).data, 0.0));
    // Half an ulp of an element: 2^-4 of it, or 2^-10 of the scale where it is subnormal.
    std::vector<double> bound = test::to_double(x);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double scale = cpu::ref::e8m0_value(q.rows.scales.data<uint8_t>()[q.rows.scale_index(0, i / 256, i % 256)]);
      double& b = bound[static_cast<size_t>(i)];
      b = std::max(std::fabs(b) / 16, scale / 1024);
    }
    EXPECT_TRUE(test::within(out, test::to_double(x), bound));
    std::vector<double> tight = bound;
    for (double& b : tight) b /= 4;
    EXPECT_FALSE(test::within(out, test::to_double(x), tight));
  }
}

TEST(Mxfp8Dequantize, BadNumbersSurface) {
  CpuContext ctx;
  for (const double bad : {NAN, INFINITY}) {
    std::vector<double> values(128, 1.0);
    values[77] = bad;
    const Tensor x = test::tensor_of(ctx, {1, 128}, DType::kBF16, values);
    const auto q = ops::mxfp8_empty(ctx, 1, 128, 128);
    ops::mxfp8_quantize(ctx, {.x = x, .out = q});
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor out = test::poisoned(ctx, {1, 128}, dtype);
      ops::mxfp8_dequantize(ctx, {.x = q.rows, .out = out});
      EXPECT_FALSE(std::isfinite(test::to_double(out)[77]));
    }
  }
}

// The rule of the OCP specification's appendix, floor(log2(amax)) - 8, is another rule: the comparison must tell.
TEST(Mxfp8QuantizeRules, TheRoundDownRuleIsRejected) {
  int64_t differences = 0;
  for (int k = -20; k < 20; ++k) {
    const uint32_t amax = std::bit_cast<uint32_t>(std::ldexp(480.0F, k));
    differences += ops::e8m0_from_amax(amax) != static_cast<uint8_t>((amax >> 23) - 8);
  }
  EXPECT_EQ(differences, 40);
}

TEST(Mxfp8QuantizeRules, RefusesWhatDoesNotFit) {
  CpuContext ctx;
  EXPECT_THAT(error_of([&] { ops::mxfp8_empty(ctx, 4, 128, 64); }), testing::HasSubstr("128 or 32"));
  EXPECT_THAT(error_of([&] { ops::mxfp8_empty(ctx, 4, 100, 32); }), testing::HasSubstr("not a multiple"));
  const auto out = ops::mxfp8_empty(ctx, 4, 128, 128);
  const Tensor x = test::random_tensor(ctx, {4, 256}, DType::kF32, 1);
  EXPECT_THAT(error_of([&] { ops::mxfp8_quantize(ctx, {.x = x, .out = out}); }), testing::HasSubstr("elements"));
  const auto mixed = [&](ops::MxTensor a, const ops::MxTensor& b) {
    a.columns = b.columns;
    return a;
  };
  const auto two = mixed(ops::mxfp8_empty(ctx, 4, 256, 128), ops::mxfp8_empty(ctx, 4, 256, 32));
  EXPECT_THAT(error_of([&] { ops::mxfp8_quantize(ctx, {.x = x, .out = two}); }), testing::HasSubstr("one group"));
  const Tensor w = test::random_tensor(ctx, {1, 128, 128}, DType::kF32, 2);
  const auto two_weights =
      mixed(ops::mxfp8_empty_weights(ctx, w.shape(), 128, 1), ops::mxfp8_empty_weights(ctx, w.shape(), 32, 1));
  EXPECT_THAT(error_of([&] { ops::mxfp8_quantize_weights(ctx, {.w = w, .out = two_weights}); }), testing::HasSubstr("one group"));
}

TEST(Mxfp8QuantizeRules, RunsOnMeta) {
  Context ctx = test::meta_context();
  const auto out = ops::mxfp8_empty(ctx, 300, 256, 128);
  const Tensor x = ctx.empty({300, 256}, DType::kBF16);
  ops::mxfp8_quantize(ctx, {.x = x, .out = out});
  EXPECT_EQ(ctx.arena->in_use(), 300 * 256 + 2 * 384 + 256 * 384 + 3 * 256 + 300 * 256 * 2);
}

}  // namespace
}  // namespace cistron
