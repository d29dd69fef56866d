// Weights quantised by their update: the bits of the update, and of the quantiser after it.
#include <gmock/gmock.h>

#include "tests/ops/mxfp8_adamw_cases.h"

namespace cistron::test {
namespace {

void step(Context& ctx, const ops::AdamWTensor& t, const StepState& state) {
  ops::adamw(ctx, {.tensors = std::vector{t}, .beta1 = kBeta1, .beta2 = kBeta2, .state = &state});
}

TEST(Mxfp8AdamW, IsTheUpdateThenTheQuantiser) {
  CpuContext ctx(2);
  for (const DType states : kMxStates)
    for (const MxCase& c : kMxCases) {
      const auto before = random_weights(ctx, c, states), apart = copy_of(ctx, before);
      auto together = copy_of(ctx, before);
      together.mx = c.empty(ctx);
      poison(together.mx);
      step(ctx, together, state_at(2));
      step(ctx, apart, state_at(2));
      const MxTensor want = c.empty(ctx), old = c.empty(ctx);
      ops::mxfp8_quantize_weights(ctx, {.w = apart.master.reshape(c.matrices()), .out = want});
      ops::mxfp8_quantize_weights(ctx, {.w = before.master.reshape(c.matrices()), .out = old});
      for (size_t i = 0; i < kept_tensors(apart).size(); ++i)
        EXPECT_TRUE(same_bits(kept_tensors(together)[i], kept_tensors(apart)[i])) << i << to_string(c.shape);
      EXPECT_TRUE(same_bits(together.mx, want)) << to_string(c.shape);
      EXPECT_FALSE(same_bits(together.mx, old));  // control
    }
}

TEST(Mxfp8AdamW, LeavesCopiesAloneWhenNotFinite) {
  CpuContext ctx;
  auto t = random_weights(ctx, kMxCases[0], DType::kF32);
  t.mx = kMxCases[0].empty(ctx);
  poison(t.mx);
  const MxTensor poisoned = kMxCases[0].empty(ctx);
  poison(poisoned);
  StepState state = state_at(2);
  state.finite = 0;
  step(ctx, t, state);
  EXPECT_TRUE(same_bits(t.mx, poisoned));
  state.finite = 1;
  step(ctx, t, state);
  EXPECT_FALSE(same_bits(t.mx, poisoned));  // control
}

TEST(Mxfp8AdamW, ChecksCopiesAlsoOnMeta) {
  Context ctx = meta_context();
  const auto error = [&](DType master, const MxTensor& mx) {
    const auto empty = [&](DType dtype) { return ctx.empty({256, 128}, dtype); };
    return error_of([&] {
      step(ctx, {.master = empty(master), .grad = empty(DType::kF32), .m = empty(DType::kF32), .v = empty(DType::kF32), .mx = mx},
           state_at(2));
    });
  };
  const auto weights = [&](const Shape& shape, ops::MxCopies copies) {
    return ops::mxfp8_empty_weights(ctx, shape, 128, 1, copies);
  };
  EXPECT_EQ(error(DType::kF32, weights({1, 256, 128}, {})), "");
  EXPECT_EQ(error(DType::kF32, weights({2, 128, 128}, {})), "");
  EXPECT_THAT(error(DType::kBF16, weights({1, 256, 128}, {})), testing::HasSubstr("f32 master"));
  EXPECT_THAT(error(DType::kF32, weights({1, 256, 128}, {.columns = false})), testing::HasSubstr("both copies"));
  EXPECT_THAT(error(DType::kF32, weights({1, 128, 256}, {})), testing::HasSubstr("[adamw] MXFP8"));
}

}  // namespace
}  // namespace cistron::test
