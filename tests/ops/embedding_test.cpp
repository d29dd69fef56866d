#include "cistron/ops/embedding.h"

#include <gmock/gmock.h>

#include "cistron/cpu/ref/embedding.h"
#include "tests/ops/support.h"

namespace cistron {
namespace {

using test::error_of, test::poisoned, test::random_ints, test::random_tensor, test::to_double, test::to_matrix, test::within;
using testing::HasSubstr;

struct Case {
  int64_t vocab, hidden, tokens;
};
constexpr Case kCases[] = {{33, 80, 1}, {1, 17, 9}, {33, 256, 700}, {5, 130, 0}, {4096, 64, 50}};
constexpr DType kFloats[] = {DType::kF32, DType::kBF16};

std::vector<int32_t> ints(const Tensor& t) { return {t.span<int32_t>().begin(), t.span<int32_t>().end()}; }

TEST(Embedding, ForwardCopiesRows) {
  test::CpuContext ctx(2);
  for (const auto& [vocab, hidden, tokens] : kCases)
    for (DType dtype : kFloats) {
      const Tensor table = random_tensor(ctx, {vocab, hidden}, dtype, 1);
      const Tensor ids = random_ints(ctx, {tokens}, 2, static_cast<int32_t>(vocab));
      const Tensor out = poisoned(ctx, {tokens, hidden}, dtype);
      ops::embedding_forward(ctx, {table, ids, out});
      EXPECT_TRUE(within(out, cpu::ref::embedding_forward(to_matrix(table), ints(ids)).data, 0.0));
    }
}

TEST(Embedding, BackwardSumsRowsOfATokenInF32) {
  test::CpuContext ctx(2);
  for (const auto& [vocab, hidden, tokens] : kCases)
    for (DType dtype : kFloats)
      for (bool accumulate : {false, true}) {
        const Tensor dy = random_tensor(ctx, {tokens, hidden}, dtype, 3);
        const Tensor ids = random_ints(ctx, {tokens}, 4, static_cast<int32_t>(vocab));
        const Tensor dtable =
            accumulate ? random_tensor(ctx, {vocab, hidden}, DType::kF32, 5) : poisoned(ctx, {vocab, hidden}, DType::kF32);
        auto want = accumulate ? to_matrix(dtable) : cpu::ref::Matrix<double>(vocab, hidden);
        auto size = want;  // sums of magnitudes: n additions err by at most n u of it
        for (double& x : size.data) x = std::abs(x);
        auto magnitude = to_matrix(dy);
        for (double& x : magnitude.data) x = std::abs(x);
        cpu::ref::embedding_backward(to_matrix(dy), ints(ids), want);
        cpu::ref::embedding_backward(magnitude, ints(ids), size);
        for (double& x : size.data) x *= static_cast<double>(tokens) * 0x1p-24;
        ops::embedding_backward(ctx, {dy, ids, {dtable, accumulate}});
        EXPECT_TRUE(within(dtable, want.data, size.data));
        if (tokens == 0) continue;
        want(ids.span<int32_t>()[0], 0) -= to_matrix(dy)(0, 0);  // control: one token forgotten
        EXPECT_FALSE(within(dtable, want.data, size.data));
      }
}

TEST(Embedding, BackwardIsTheTransposeOfForward) {
  test::CpuContext ctx;
  const Tensor ids = random_ints(ctx, {40}, 6, 7);
  const Tensor dy = random_tensor(ctx, {40, 17}, DType::kF32, 7), dtable = poisoned(ctx, {7, 17}, DType::kF32);
  ops::embedding_backward(ctx, {dy, ids, {dtable}});
  const auto seen = to_double(dy);
  const auto loss = [&](const std::vector<double>& table) {
    const auto y = cpu::ref::embedding_forward(cpu::ref::Matrix<double>(7, 17, table), ints(ids));
    double sum = 0;
    for (size_t i = 0; i < seen.size(); ++i) sum += seen[i] * y.data[i];
    return sum;
  };
  // at most 40 additions of values under 4
  EXPECT_TRUE(within(dtable, test::numeric_gradient(loss, std::vector<double>(7 * 17, 0.5)), 40 * 0x1p-24 * 40));
}

TEST(Embedding, SameBitsForAnyThreads) {
  EXPECT_TRUE(test::same_for_any_threads([](Context& ctx) {
    const Tensor ids = random_ints(ctx, {3000}, 8, 33);
    const Tensor dy = random_tensor(ctx, {3000, 200}, DType::kF32, 9), dtable = poisoned(ctx, {33, 200}, DType::kF32);
    ops::embedding_backward(ctx, {dy, ids, {dtable}});
    return std::vector{dtable};
  }));
}

TEST(Embedding, NamesAnOutOfRangeToken) {
  test::CpuContext ctx;
  const Tensor table = random_tensor(ctx, {5, 8}, DType::kF32, 1), out = poisoned(ctx, {3, 8}, DType::kF32);
  for (double bad : {5.0, -1.0}) {
    const Tensor ids = test::tensor_of(ctx, {3}, DType::kI32, {0, 4, bad});
    EXPECT_THAT(error_of([&] { ops::embedding_forward(ctx, {table, ids, out}); }), HasSubstr("position 2"));
    EXPECT_THAT(error_of([&] { ops::embedding_backward(ctx, {out, ids, {table}}); }), HasSubstr("[embedding_backward]"));
  }
}

TEST(Embedding, ChecksShapesAlsoOnMeta) {
  Context ctx = test::meta_context();
  const Tensor table = ctx.empty({5, 8}, DType::kF32), out = ctx.empty({3, 8}, DType::kF32),
               wide = ctx.empty({3, 9}, DType::kF32);
  const Tensor ids = ctx.empty({3}, DType::kI32), floats = ctx.empty({3}, DType::kF32);
  ops::embedding_forward(ctx, {table, ids, out});
  ops::embedding_backward(ctx, {out, ids, {table}});
  EXPECT_THAT(error_of([&] { ops::embedding_forward(ctx, {table, ids, wide}); }), HasSubstr("[embedding_forward]"));
  EXPECT_THAT(error_of([&] { ops::embedding_forward(ctx, {table, floats, out}); }), HasSubstr("[embedding_forward]"));
  EXPECT_THAT(error_of([&] { ops::embedding_backward(ctx, {wide, ids, {table}}); }), HasSubstr("[embedding_backward]"));
}

}  // namespace
}  // namespace cistron
