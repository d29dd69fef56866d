#include "cistron/cpu/ref/attention.h"
#include "cistron/ops/attention.h"
#include "tests/cuda/support.h"

namespace cistron::test {
namespace {

class CudaRope : public OnCard {
 protected:
  void check(const ops::AttentionShape& shape, const std::vector<int64_t>& positions, DType dtype, bool inverse) {
    const auto tokens = static_cast<int64_t>(positions.size());
    const Tensor qkv = random_tensor(cpu_, {tokens, shape.qkv_width()}, dtype, 1);
    const Tensor at = tensor_of(cpu_, {tokens}, DType::kI32, {positions.begin(), positions.end()});
    const Tensor got =
        twice([&] {
          const Tensor turned = device(qkv);
          ops::rope(cuda_, {.qkv = turned, .positions = device(at), .shape = shape, .theta = 1e4F, .inverse = inverse});
          return std::vector{turned};
        }).front();
    auto want = to_matrix(qkv);
    std::vector<double> bound(want.data.size(), 0.0);  // values are not touched
    for (int64_t t = 0; t < want.rows; ++t)
      for (int64_t c = 0; c < (shape.num_heads + shape.num_kv_heads) * shape.head_dim; ++c) {
        const int64_t half = shape.head_dim / 2, other = c % shape.head_dim < half ? c + half : c - half;
        bound[static_cast<size_t>(t * want.cols + c)] =
            (std::abs(want(t, c)) + std::abs(want(t, other))) *
            (3.01 * unit_roundoff(DType::kF32) + (dtype == DType::kF32 ? 0 : 1.01 * unit_roundoff(dtype)));
      }
    auto other_way = want;
    cpu::ref::rope(want, positions, shape, 1e4, inverse);
    cpu::ref::rope(other_way, positions, shape, 1e4, !inverse);
    EXPECT_TRUE(within(got, want.data, bound));
    EXPECT_FALSE(tokens > 1 && within(got, other_way.data, bound));  // control
  }
};

TEST_F(CudaRope, AgreesWithTheDefinition) {
  std::vector<int64_t> many;
  for (int64_t t = 0; t < 301; ++t) many.push_back(t % 70 * 97);
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (bool inverse : {false, true}) {
      check({4, 2, 20}, {0, 1, 2, 3, 0, 0, 1}, dtype, inverse);
      check({2, 1, 64}, {5, 100000, -3, 1000000, 2000000000}, dtype, inverse);
      check({1, 1, 2}, {0}, dtype, inverse);
      check({8, 2, 128}, many, dtype, inverse);
      check({3, 3, 512}, many, dtype, inverse);
      check({4, 2, 64}, {}, dtype, inverse);
    }
}

}  // namespace
}  // namespace cistron::test
