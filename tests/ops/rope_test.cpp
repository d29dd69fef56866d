#include <gtest/gtest.h>

#include "cistron/cpu/ref/attention.h"
#include "cistron/ops/attention.h"
#include "tests/ops/support.h"

namespace cistron::test {
namespace {

struct Case {
  ops::AttentionShape shape;
  std::vector<int64_t> positions;
  DType dtype = DType::kF32;
  bool inverse = false;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const bool inverse : {false, true}) {
      all.push_back({{4, 2, 20}, {0, 1, 2, 3, 0, 0, 1}, dtype, inverse});
      all.push_back({{2, 1, 64}, {5, 100000, -3}, dtype, inverse});  // beyond the batch: angles by token
      all.push_back({{1, 1, 2}, {0}, dtype, inverse});
    }
  return all;
}

// Two products of operands with one rounding each in the rotation, then the sum's and the storage's.
std::vector<double> bound_of(const cpu::ref::Matrix<double>& qkv, const ops::AttentionShape& shape, DType dtype) {
  std::vector<double> bound(qkv.data.size(), 0.0);  // values are not touched
  for (int64_t t = 0; t < qkv.rows; ++t)
    for (int64_t c = 0; c < (shape.num_heads + shape.num_kv_heads) * shape.head_dim; ++c) {
      const int64_t half = shape.head_dim / 2, other = c % shape.head_dim < half ? c + half : c - half;
      const double size = std::abs(qkv(t, c)) + std::abs(qkv(t, other));
      bound[static_cast<size_t>(t * qkv.cols + c)] =
          size * (3.01 * unit_roundoff(DType::kF32) + (dtype == DType::kF32 ? 0 : 1.01 * unit_roundoff(dtype)));
    }
  return bound;
}

class Rope : public testing::TestWithParam<Case> {};

TEST_P(Rope, AgreesWithTheDefinition) {
  const Case& c = GetParam();
  CpuContext ctx(2);
  const auto tokens = static_cast<int64_t>(c.positions.size());
  const Tensor qkv = random_tensor(ctx, {tokens, c.shape.qkv_width()}, c.dtype, 1);
  const Tensor positions = tensor_of(ctx, {tokens}, DType::kI32, {c.positions.begin(), c.positions.end()});
  auto want = to_matrix(qkv);
  const auto bound = bound_of(want, c.shape, c.dtype);
  cpu::ref::rope(want, c.positions, c.shape, 1e4, c.inverse);
  ops::rope(ctx, {.qkv = qkv, .positions = positions, .shape = c.shape, .theta = 1e4F, .inverse = c.inverse});
  EXPECT_TRUE(within(qkv, want.data, bound));
  if (c.shape.head_dim == 2) return;
  cpu::ref::rope(want, c.positions, c.shape, 1e4, !c.inverse);  // back where it was
  EXPECT_FALSE(within(qkv, want.data, bound));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Rope, testing::ValuesIn(cases()));

TEST(RopeChecks, OddHeadsAndNoTokens) {
  CpuContext ctx;
  const Tensor none = ctx.empty({0, 12}), no_positions = ctx.empty({0}, DType::kI32);
  ops::rope(ctx, {.qkv = none, .positions = no_positions, .shape = {1, 1, 4}});
  Context meta = meta_context();
  const Tensor qkv = meta.empty({3, 12}), odd = meta.empty({3, 9}), positions = meta.empty({3}, DType::kI32);
  ops::rope(meta, {.qkv = qkv, .positions = positions, .shape = {1, 1, 4}});
  EXPECT_NE(error_of([&] { ops::rope(meta, {.qkv = odd, .positions = positions, .shape = {1, 1, 3}}); }).find("odd"),
            std::string::npos);
}

}  // namespace
}  // namespace cistron::test
