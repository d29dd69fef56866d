// The quantisers on the card against the CPU's, bit for bit.
#include "cistron/ops/mxfp8_underflow.h"
#include "cistron/ops/rms_norm.h"
#include "tests/cuda/support.h"
#include "tests/ops/mxfp8_support.h"
#include "tests/ops/routing_support.h"

namespace cistron::test {
namespace {

struct Param {
  int64_t group, rows, depth;
  DType dtype;
};

class CudaMxfp8Quantize : public testing::TestWithParam<Param> {
 protected:
  void SetUp() override { CISTRON_NEEDS_CARD(); }
  /// Runs both and compares; tensors of `args` lie on the CPU.
  void expect_same(const Tensor& x, const Tensor& source_row, const Tensor& starts) {
    const int64_t rows = source_row.defined() ? source_row.dim(0) : x.dim(0);
    const auto want = ops::mxfp8_empty(cpu_, rows, x.dim(1), GetParam().group);
    const auto got = ops::mxfp8_empty(cuda_, rows, x.dim(1), GetParam().group);
    poison(want);
    poison_on_device(got);
    ops::mxfp8_quantize(cpu_, {.x = x, .out = want, .source_row = source_row, .starts = starts});
    const Tensor ends = starts.defined() ? to_device(cuda_, starts) : Tensor{};
    cuda::mxfp8_quantize(cuda_, {.x = to_device(cuda_, x),
                                 .out = got,
                                 .source_row = source_row.defined() ? to_device(cuda_, source_row) : Tensor{},
                                 .starts = ends});
    EXPECT_EQ(ops::mxfp8_underflow(cuda_, got.rows, ends), ops::mxfp8_underflow(cpu_, want.rows, starts));
    const auto back = to_host(cpu_, got);
    EXPECT_TRUE(same_bits(back, want));
    back.columns.scales.data<uint8_t>()[0] ^= 1U;
    EXPECT_FALSE(same_bits(back, want));  // the comparison sees one bit
  }
  CpuContext cpu_{2};
  CudaContext cuda_;
};

TEST_P(CudaMxfp8Quantize, EqualsCpu) {
  expect_same(mxfp8_values(cpu_, {GetParam().rows, GetParam().depth}, GetParam().dtype, 41), {}, {});
}

TEST_P(CudaMxfp8Quantize, GathersRows) {
  const Tensor x = mxfp8_values(cpu_, {53, GetParam().depth}, GetParam().dtype, 42);
  const Tensor source_row = random_ints(cpu_, {GetParam().rows}, 43, 60);
  for (int32_t& row : source_row.span<int32_t>()) row = row < 53 ? row : -1;
  expect_same(x, source_row, {});
}

TEST_P(CudaMxfp8Quantize, LeavesRowsPastTheSegmentsAlone) {
  const Tensor x = mxfp8_values(cpu_, {GetParam().rows + 256, GetParam().depth}, GetParam().dtype, 44);
  expect_same(x, {}, tensor_of(cpu_, {3}, DType::kI32, {0, 128, 128}));
}

struct RoutedCase {
  int64_t tokens, top_k, experts;
  int32_t first_expert;  // whose rows are here, with those of the `here` - 1 next
  int64_t here;
  Choice choice = Choice::kRandom;
};

/// Tokens in the order of their experts; some rows are on other ranks, some experts have none.
TEST_P(CudaMxfp8Quantize, GathersRoutedRows) {
  const RoutedCase cases[] = {{300, 1, 4, 0, 4},   {517, 2, 8, 0, 8, Choice::kLastExpertEmpty},
                              {129, 8, 64, 0, 64}, {200, 8, 16, 3, 5},
                              {64, 11, 12, 2, 9},  {70, 2, 8, 40, 4},
                              {1, 3, 3, 0, 3},     {300, 2, 3, 0, 3, Choice::kAllToLast}};
  for (const RoutedCase& c : cases) {
    SCOPED_TRACE(fmt::format("{} tokens, {} of {} experts from {} on", c.tokens, c.top_k, c.experts, c.first_expert));
    const Tensor experts = random_choices(cpu_, c.tokens, c.top_k, c.experts, c.choice, 71);
    const Tensor weights = random_tensor(cpu_, experts.shape(), DType::kF32, 72);
    const ops::Groups groups = make_groups(cpu_, experts, c.here, weights, 128, 3, c.first_expert);
    expect_same(mxfp8_values(cpu_, {c.tokens, GetParam().depth}, GetParam().dtype, 73), groups.source_row, groups.starts);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaMxfp8Quantize,
                         testing::Values(Param{128, 1, 128, DType::kBF16}, Param{128, 127, 256, DType::kF32},
                                         Param{128, 300, 384, DType::kBF16}, Param{128, 1024, 1152, DType::kBF16},
                                         Param{32, 129, 96, DType::kBF16}, Param{32, 256, 160, DType::kF32},
                                         Param{32, 500, 416, DType::kBF16}));

class CudaMxfp8 : public testing::Test {
 protected:
  void SetUp() override { CISTRON_NEEDS_CARD(); }
  CpuContext cpu_{2};
  CudaContext cuda_;
};

TEST_F(CudaMxfp8, OfANormEqualsTheNormQuantised) {
  for (const Param& p : {Param{128, 300, 256, DType::kBF16}, Param{128, 127, 384, DType::kF32}, Param{128, 1, 128, DType::kBF16},
                         Param{128, 1000, 2048, DType::kBF16}}) {
    const Shape shape{p.rows, p.depth};
    const Tensor a = to_device(cuda_, random_tensor(cpu_, shape, p.dtype, 45)),
                 w = random_tensor(cpu_, {p.depth}, DType::kF32, 46);
    const Tensor b = to_device(cuda_, random_tensor(cpu_, shape, p.dtype, 47)), weight = to_device(cuda_, w);
    const auto poisoned_there = [&](const Shape& s, DType dtype) { return poisoned_on_device(cuda_, s, dtype); };
    const Tensor y = poisoned_there(shape, p.dtype), sum = poisoned_there(shape, p.dtype),
                 sum_alone = poisoned_there(shape, p.dtype);
    const Tensor rstd = poisoned_there({p.rows}, DType::kF32), rstd_alone = poisoned_there({p.rows}, DType::kF32);
    ops::add_rms_norm_forward(cuda_, {.a = a, .b = b, .w = weight, .sum = sum, .out = y, .rstd = rstd});
    ops::add_rms_norm_forward(cuda_, {.a = a, .b = b, .w = weight, .sum = sum_alone, .out = {}, .rstd = rstd_alone});
    EXPECT_TRUE(same_bits(to_host(cpu_, sum_alone), to_host(cpu_, sum)));
    EXPECT_TRUE(same_bits(to_host(cpu_, rstd_alone), to_host(cpu_, rstd)));
    const auto quantized = [&](const ops::Mxfp8Quantize& args) {
      poison_on_device(args.out);
      ops::mxfp8_quantize(cuda_, args);
      return to_host(cpu_, args.out);
    };
    const auto out = [&] { return ops::mxfp8_empty(cuda_, p.rows, p.depth, 128); };
    const auto want = quantized({.x = y, .out = out()});
    EXPECT_TRUE(same_bits(quantized({.x = sum, .out = out(), .rstd = rstd, .norm_weight = weight}), want));
    EXPECT_FALSE(same_bits(quantized({.x = sum, .out = out()}), want));  // control: without the norm
  }
}

TEST_F(CudaMxfp8, EveryBf16Value) {
  const Tensor x = cpu_.empty({512, 128}, DType::kBF16);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<bf16>()[i].bits = static_cast<uint16_t>(i);
  for (const int64_t group : {128, 32})
    for (const bool gather : {false, true}) {
      // Gathered: each value stands alone among rows that are -1, so that its own amax scales it down the columns.
      const Tensor rows = random_ints(cpu_, {2048}, 5, 2048);
      for (int32_t& row : rows.span<int32_t>()) row = row < 512 ? row : -1;
      const int64_t count = gather ? 2048 : 512;
      const auto want = ops::mxfp8_empty(cpu_, count, 128, group);
      const auto got = ops::mxfp8_empty(cuda_, count, 128, group);
      ops::mxfp8_quantize(cpu_, {.x = x, .out = want, .source_row = gather ? rows : Tensor{}});
      cuda::mxfp8_quantize(cuda_,
                           {.x = to_device(cuda_, x), .out = got, .source_row = gather ? to_device(cuda_, rows) : Tensor{}});
      EXPECT_TRUE(same_bits(to_host(cpu_, got), want));
    }
}

TEST_F(CudaMxfp8, AmaxBesideEveryLimit) {
  std::vector<double> values;
  for (int k = -140; k < 119; ++k)
    for (const int ulp : {-1, 0, 1}) {
      const auto limit = std::bit_cast<uint32_t>(std::ldexp(448.0F, k)) + static_cast<uint32_t>(ulp);
      for (int i = 0; i < 128; ++i)
        values.push_back(i == k + 140 - (k + 140) / 128 * 128 ? std::bit_cast<float>(limit)
                                                              : std::ldexp(1 + i / 128.0, k - i % 19));
    }
  const Tensor x = tensor_of(cpu_, {static_cast<int64_t>(values.size()) / 128, 128}, DType::kF32, values);
  for (const int64_t group : {128, 32}) {
    const auto want = ops::mxfp8_empty(cpu_, x.dim(0), 128, group);
    const auto got = ops::mxfp8_empty(cuda_, x.dim(0), 128, group);
    ops::mxfp8_quantize(cpu_, {.x = x, .out = want});
    cuda::mxfp8_quantize(cuda_, {.x = to_device(cuda_, x), .out = got});
    EXPECT_TRUE(same_bits(to_host(cpu_, got), want));
  }
}

TEST_F(CudaMxfp8, Weights) {
  struct Weights {
    int64_t group, sections;
    Shape shape;
  };
  const Weights all[] = {
      {128, 2, {2, 512, 256}}, {128, 1, {3, 640, 128}}, {32, 2, {2, 320, 224}}, {32, 1, {1, 96, 32}}, {32, 2, {2, 448, 160}}};
  for (const auto& [group, sections, shape] : all)
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor w = mxfp8_values(cpu_, shape, dtype, 51, shape[2] == 224);
      const auto want = ops::mxfp8_empty_weights(cpu_, shape, group, sections);
      const auto got = ops::mxfp8_empty_weights(cuda_, shape, group, sections);
      poison_on_device(got);
      ops::mxfp8_quantize_weights(cpu_, {.w = w, .out = want});
      cuda::mxfp8_quantize_weights(cuda_, {.w = to_device(cuda_, w), .out = got});
      EXPECT_TRUE(same_bits(to_host(cpu_, got), want)) << to_string(shape) << " " << group;
    }
}

TEST_F(CudaMxfp8, Dequantize) {
  const Tensor w = mxfp8_values(cpu_, {2, 320, 224}, DType::kF32, 61, false);
  const Tensor x = mxfp8_values(cpu_, {300, 384}, DType::kF32, 62, false);
  const auto weights = ops::mxfp8_empty_weights(cpu_, w.shape(), 32, 2);
  const auto rows = ops::mxfp8_empty(cpu_, 300, 384, 128);
  ops::mxfp8_quantize_weights(cpu_, {.w = w, .out = weights});
  ops::mxfp8_quantize(cpu_, {.x = x, .out = rows});
  for (const auto* operand : {&weights.rows, &weights.columns, &rows.rows, &rows.columns})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor want = poisoned(cpu_, operand->elements.shape(), dtype);
      const Tensor got = poisoned_on_device(cuda_, operand->elements.shape(), dtype);
      ops::mxfp8_dequantize(cpu_, {.x = *operand, .out = want});
      cuda::mxfp8_dequantize(cuda_, {.x = to_device(cuda_, *operand), .out = got});
      EXPECT_TRUE(same_bits(to_host(cpu_, got), want));
    }
}

}  // namespace
}  // namespace cistron::test
