#include "cistron/ops/embedding.h"

#include "cistron/cpu/ref/embedding.h"
#include "tests/cuda/support.h"

namespace cistron::test {
namespace {

struct Case {
  int64_t vocab, hidden, tokens;
};
// Fewer and more tokens than a piece, runs over many pieces, one and two digits, no tokens.
constexpr Case kCases[] = {{33, 80, 1},       {1, 17, 900},     {33, 256, 2000}, {5, 130, 0},    {4096, 64, 50},
                           {40000, 24, 3000}, {300000, 8, 200}, {511, 40, 5000}, {512, 40, 5000}};
constexpr DType kFloats[] = {DType::kF32, DType::kBF16};

std::vector<int32_t> ints(const Tensor& t) { return {t.span<int32_t>().begin(), t.span<int32_t>().end()}; }

class CudaEmbedding : public OnCard {
 protected:
  /// Small integers: their sums are exact in any order.
  Tensor integers(const Shape& shape, DType dtype, uint64_t seed) {
    auto values = to_double(random_ints(cpu_, shape, seed, 9));
    for (double& v : values) v -= 4;
    return tensor_of(cpu_, shape, dtype, values);
  }
  Tensor backward(const Tensor& dy, const Tensor& ids, const Tensor& table, bool accumulate) {
    return twice([&] {
             const Tensor out = device(table);
             ops::embedding_backward(cuda_, {device(dy), device(ids), {out, accumulate}});
             return std::vector{out};
           })
        .front();
  }
};

TEST_F(CudaEmbedding, ForwardCopiesRows) {
  for (const auto& [vocab, hidden, tokens] : kCases)
    for (DType dtype : kFloats) {
      const Tensor table = random_tensor(cpu_, {vocab, hidden}, dtype, 1);
      const Tensor ids = random_ints(cpu_, {tokens}, 2, static_cast<int32_t>(vocab));
      const Tensor want = poisoned(cpu_, {tokens, hidden}, dtype), got = poisoned_there({tokens, hidden}, dtype);
      ops::embedding_forward(cpu_, {table, ids, want});
      ops::embedding_forward(cuda_, {device(table), device(ids), got});
      EXPECT_TRUE(same_bits(host(got), want));
    }
}

TEST_F(CudaEmbedding, BackwardOfIntegersIsExact) {
  for (const auto& [vocab, hidden, tokens] : kCases)
    for (DType dtype : kFloats)
      for (bool accumulate : {false, true}) {
        const Tensor dy = integers({tokens, hidden}, dtype, 3);
        const Tensor ids = random_ints(cpu_, {tokens}, 4, static_cast<int32_t>(vocab));
        const Tensor table =
            accumulate ? integers({vocab, hidden}, DType::kF32, 5) : poisoned(cpu_, {vocab, hidden}, DType::kF32);
        const Tensor got = backward(dy, ids, table, accumulate);
        ops::embedding_backward(cpu_, {dy, ids, {table, accumulate}});
        EXPECT_TRUE(within(got, to_double(table), 0.0)) << vocab << " " << tokens;
      }
}

TEST_F(CudaEmbedding, BackwardWithinRounding) {
  for (const auto& [vocab, hidden, tokens] : kCases)
    for (bool skewed : {false, true}) {
      const Tensor dy = random_tensor(cpu_, {tokens, hidden}, DType::kBF16, 6);
      const Tensor ids = random_ints(cpu_, {tokens}, 7, static_cast<int32_t>(vocab));
      for (size_t i = 0; skewed && i < ids.span<int32_t>().size(); ++i)
        if (i % 3 > 0) ids.span<int32_t>()[i] = static_cast<int32_t>(vocab - 1);
      cpu::ref::Matrix<double> want(vocab, hidden), size = want;
      auto magnitude = to_matrix(dy);
      for (double& x : magnitude.data) x = std::abs(x);
      cpu::ref::embedding_backward(to_matrix(dy), ints(ids), want);
      cpu::ref::embedding_backward(magnitude, ints(ids), size);
      for (double& x : size.data) x *= static_cast<double>(tokens) * 0x1p-24;  // as many additions err by at most as much
      const Tensor got = backward(dy, ids, poisoned(cpu_, {vocab, hidden}, DType::kF32), false);
      EXPECT_TRUE(within(got, want.data, size.data));
      if (tokens == 0) continue;
      want(ids.span<int32_t>()[0], 0) -= to_matrix(dy)(0, 0);  // control: one token forgotten
      EXPECT_FALSE(within(got, want.data, size.data));
    }
}

TEST_F(CudaEmbedding, TokensOutsideTheVocabularyShow) {
  const Tensor table = integers({5, 24}, DType::kBF16, 1), ids = tensor_of(cpu_, {4}, DType::kI32, {0, 5, -1, 4});
  const Tensor out = poisoned_there({4, 24}, DType::kBF16), dtable = poisoned_there({5, 24}, DType::kF32);
  const Tensor dy = integers({4, 24}, DType::kBF16, 2);
  ops::embedding_forward(cuda_, {device(table), device(ids), out});
  ops::embedding_backward(cuda_, {device(dy), device(ids), {dtable}});
  const auto y = to_matrix(host(out)), d = to_matrix(host(dtable)), upstream = to_matrix(dy);
  for (int64_t h = 0; h < 24; ++h) {
    EXPECT_EQ(y(0, h), to_matrix(table)(0, h));
    EXPECT_TRUE(std::isnan(y(1, h)) && std::isnan(y(2, h)));
    EXPECT_EQ(d(0, h), upstream(0, h));
    EXPECT_EQ(d(1, h), 0.0);
    EXPECT_EQ(d(4, h), upstream(3, h));
  }
}

}  // namespace
}  // namespace cistron::test
