#include "cistron/ops/attention_decode.h"

#include <gtest/gtest.h>

#include "cistron/cpu/ref/attention_decode.h"
#include "tests/ops/attention_bounds.h"

namespace cistron::test {
namespace {

using DecodeCase = cpu::ref::DecodeCase<double>;

struct Case {
  ops::AttentionShape shape;
  std::vector<int32_t> lengths;  // of each slot's sequence, the new token included; 0: nobody asks
  int64_t capacity = 0;
  DType dtype = DType::kF32;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << fmt::format("{}/{} heads of {}, lengths {} of {}, {}", c.shape.num_heads, c.shape.num_kv_heads, c.shape.head_dim,
                     fmt::join(c.lengths, " "), c.capacity, name_of(c.dtype));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    all.push_back({{4, 2, 20}, {1, 64, 0, 65, 37, 130, 15, 16, 17}, 130, dtype});
    all.push_back({{2, 2, 64}, {0, 200, 3}, 256, dtype});
    all.push_back({{3, 1, 7}, {5, 1, 66}, 70, dtype});
    all.push_back({{1, 1, 16}, {1}, 1, dtype});
  }
  return all;
}

// The sequences of all slots as packed attention sees them, and their last tokens as generation does, in another order than the
// slots'. Cache rows that no token wrote are poisoned.
struct Problem {
  Case c;
  float scale = 1.0F / std::sqrt(static_cast<float>(c.shape.head_dim));
  std::vector<double> ends{0}, slot_of, position_of;  // of each packed token
  std::vector<double> last, slots, positions;         // of each token that asks
  Tensor packed, qkv, cache, out;

  Problem(Context& ctx, const Case& what) : c(what) {
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      for (int32_t i = 0; i < c.lengths[s]; ++i) {
        slot_of.push_back(static_cast<double>(s));
        position_of.push_back(i);
      }
      ends.push_back(static_cast<double>(slot_of.size()));
    }
    for (size_t s = c.lengths.size(); s-- > 0;) {
      if (c.lengths[s] == 0) continue;
      last.push_back(ends[s + 1] - 1);
      slots.push_back(static_cast<double>(s));
      positions.push_back(c.lengths[s] - 1);
    }
    packed = random_tensor(ctx, {std::ssize(slot_of), c.shape.qkv_width()}, c.dtype, 1, 1.5);
    cache = poisoned(ctx, {std::ssize(c.lengths), 2 * c.shape.num_kv_heads, c.capacity, c.shape.head_dim}, c.dtype);
    qkv = ctx.empty({std::ssize(last), packed.dim(1)}, c.dtype);
    out = poisoned(ctx, {std::ssize(last), c.shape.out_width()}, c.dtype);
    const auto row_bytes = static_cast<size_t>(packed.rows(0, 1).bytes());
    for (size_t i = 0; i < last.size(); ++i)
      std::memcpy(qkv.rows(static_cast<int64_t>(i), 1).raw(), packed.rows(static_cast<int64_t>(last[i]), 1).raw(), row_bytes);
    store(ctx, packed, slot_of, position_of);
  }

  static Tensor ints(const Context& ctx, const std::vector<double>& values) {
    return tensor_of(ctx, {std::ssize(values)}, DType::kI32, values);
  }
  void store(Context& ctx, const Tensor& from, const std::vector<double>& to_slots,
             const std::vector<double>& to_positions) const {
    ops::cache_store(
        ctx, {.qkv = from, .slots = ints(ctx, to_slots), .positions = ints(ctx, to_positions), .shape = c.shape, .cache = cache});
  }
  void run(Context& ctx) const {
    ops::attention_decode(ctx, {.qkv = qkv,
                                .cache = cache,
                                .slots = ints(ctx, slots),
                                .positions = ints(ctx, positions),
                                .shape = c.shape,
                                .scale = scale,
                                .out = out});
  }
  [[nodiscard]] AttentionCase packed_in_double() const {
    return {to_matrix(packed), {ends.begin(), ends.end()}, c.shape, static_cast<double>(scale), true};
  }
  [[nodiscard]] DecodeCase in_double() const {
    return {.qkv = to_matrix(qkv),
            .cache = to_matrix(cache.reshape({cache.numel() / c.shape.head_dim, c.shape.head_dim})),
            .capacity = c.capacity,
            .slots = {slots.begin(), slots.end()},
            .positions = {positions.begin(), positions.end()},
            .shape = c.shape,
            .scale = static_cast<double>(scale)};
  }
  /// The rows of the tokens that ask, out of one row for each packed token.
  [[nodiscard]] std::vector<double> of_last(const std::vector<double>& rows) const {
    const auto width = static_cast<size_t>(c.shape.out_width());
    std::vector<double> some;
    for (const double row : last) {
      const auto begin = rows.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(row) * width);
      some.insert(some.end(), begin, begin + static_cast<ptrdiff_t>(width));
    }
    return some;
  }
};

class AttentionDecode : public testing::TestWithParam<Case> {};

// The bounds of packed attention hold: the same sums, in fewer pieces.
TEST_P(AttentionDecode, AgreesWithTheDefinitionAndWithPackedAttention) {
  CpuContext ctx(2);
  const Problem problem(ctx, GetParam());
  problem.run(ctx);
  const AttentionCase packed = problem.packed_in_double();
  const AttentionBounds bounds(packed, problem.c.dtype);
  const auto want = problem.of_last(cpu::ref::attention_forward(packed).out.data), bound = problem.of_last(bounds.out());
  EXPECT_TRUE(within(cpu::ref::attention_decode(problem.in_double()).data, want, std::vector<double>(want.size(), 1e-12)));
  EXPECT_TRUE(within(problem.out, want, bound));
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionDecode, testing::ValuesIn(cases()));

TEST(AttentionDecodeControl, AForgottenKeyAnotherSlotAndAnotherScaleShow) {
  CpuContext ctx;
  const Problem problem(ctx, {{4, 2, 20}, {40, 64, 65, 37}, 80, DType::kF32});
  problem.run(ctx);
  const AttentionBounds bounds(problem.packed_in_double(), DType::kF32);
  const auto rejected = [&](const DecodeCase& wrong) {
    EXPECT_FALSE(within(problem.out, cpu::ref::attention_decode(wrong).data, problem.of_last(bounds.out())));
  };
  DecodeCase wrong = problem.in_double();
  --wrong.positions[1];
  rejected(wrong);
  wrong = problem.in_double();
  std::swap(wrong.slots[0], wrong.slots[3]);
  std::swap(wrong.positions[0], wrong.positions[3]);
  rejected(wrong);
  wrong = problem.in_double();
  wrong.scale *= 1.05;
  rejected(wrong);
}

TEST(AttentionDecodeBits, AloneAndAmongOthersForAnyThreads) {
  const Case c{{4, 2, 20}, {1, 64, 65, 37, 130}, 140, DType::kF32};
  EXPECT_TRUE(same_for_any_threads([&](Context& ctx) {
    const Problem problem(ctx, c);
    problem.run(ctx);
    return std::vector<Tensor>{problem.out, problem.cache};
  }));
  CpuContext ctx;
  const Problem problem(ctx, c);
  problem.run(ctx);
  for (int64_t t = 0; t < problem.qkv.dim(0); ++t) {
    const auto i = static_cast<size_t>(t);
    const Tensor alone = poisoned(ctx, {1, c.shape.out_width()}, DType::kF32);
    ops::attention_decode(ctx, {.qkv = problem.qkv.rows(t, 1),
                                .cache = problem.cache,
                                .slots = Problem::ints(ctx, {problem.slots[i]}),
                                .positions = Problem::ints(ctx, {problem.positions[i]}),
                                .shape = c.shape,
                                .scale = problem.scale,
                                .out = alone});
    EXPECT_TRUE(same_bits(alone, problem.out.rows(t, 1))) << t;
  }
}

TEST(CacheStore, WritesItsPlacesAlone) {
  CpuContext ctx;
  const ops::AttentionShape shape{4, 2, 5};
  const Tensor qkv = random_tensor(ctx, {4, shape.qkv_width()}, DType::kF32, 7);
  const Tensor cache = random_tensor(ctx, {3, 4, 6, 5}, DType::kF32, 8), before = copy_of(ctx, cache);
  ops::cache_store(ctx, {.qkv = qkv,
                         .slots = tensor_of(ctx, {4}, DType::kI32, {2, -1, 0, 2}),
                         .positions = tensor_of(ctx, {4}, DType::kI32, {5, 0, 0, 1}),
                         .shape = shape,
                         .cache = cache});
  auto want = to_double(before);
  const auto rows = to_matrix(qkv);
  for (const auto& [token, slot, position] : {std::tuple<int64_t, int64_t, int64_t>{0, 2, 5}, {2, 0, 0}, {3, 2, 1}})
    for (int64_t i = 0; i < 20; ++i)
      want[static_cast<size_t>(((slot * 4 + i / 5) * 6 + position) * 5 + i % 5)] = rows(token, 20 + i);
  EXPECT_EQ(to_double(cache), want);
  EXPECT_NE(to_double(before), want);
}

TEST(AttentionDecodeChecks, ShapesOnMetaAndPlacesOutsideTheCache) {
  Context meta = meta_context();
  const ops::AttentionShape shape{4, 2, 8};
  const auto run = [&](Context& ctx, const Tensor& slots, const Tensor& positions, const Shape& cache_shape) {
    const Tensor qkv = ctx.empty({2, 64}), cache = ctx.empty(cache_shape), out = ctx.empty({2, 32});
    return error_of([&] {
      ops::cache_store(ctx, {.qkv = qkv, .slots = slots, .positions = positions, .shape = shape, .cache = cache});
      ops::attention_decode(ctx,
                            {.qkv = qkv, .cache = cache, .slots = slots, .positions = positions, .shape = shape, .out = out});
    });
  };
  const Tensor meta_ints = meta.empty({2}, DType::kI32);
  EXPECT_EQ(run(meta, meta_ints, meta_ints, {3, 4, 10, 8}), "");
  EXPECT_NE(run(meta, meta_ints, meta_ints, {3, 8, 10, 8}).find("[cache_store] cache"), std::string::npos);
  EXPECT_NE(run(meta, meta_ints, meta_ints, {30, 32}).find("wanted [slots, 2 kv_heads"), std::string::npos);
  CpuContext ctx;
  const auto places = [&](const std::vector<double>& slots, const std::vector<double>& positions) {
    return run(ctx, tensor_of(ctx, {2}, DType::kI32, slots), tensor_of(ctx, {2}, DType::kI32, positions), {3, 4, 10, 8});
  };
  EXPECT_NE(places({0, 3}, {0, 0}).find("[cache_store] token 1 is at position 0 of slot 3"), std::string::npos);
  EXPECT_NE(places({0, 1}, {10, 0}).find("[cache_store] token 0 is at position 10"), std::string::npos);
  EXPECT_NE(places({0, 1}, {0, -1}).find("[cache_store] token 1 is at position -1"), std::string::npos);
  EXPECT_NE(places({0, -1}, {0, 0}).find("[attention_decode] token 1 is at position 0 of slot -1"), std::string::npos);
}

}  // namespace
}  // namespace cistron::test
