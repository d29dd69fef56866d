#include "cistron/ops/grouped_swiglu.h"

#include <gmock/gmock.h>

#include "tests/ops/swiglu_products.h"

namespace cistron {
namespace {

using test::error_of, test::poisoned, test::random_tensor;
using testing::HasSubstr;

constexpr int64_t kHidden = 48;

std::vector<test::RoutingCase> cases() {
  auto cases = test::packed_cases(1);
  for (const int64_t alignment : {8, 128})
    for (const auto& c : test::packed_cases(alignment)) cases.push_back(c);
  return cases;
}

TEST(GroupedSwiglu, Forward) {
  test::CpuContext ctx(2);
  for (const auto& c : cases())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int64_t width : {17, 290}) {
        const test::SwigluCase in(ctx, c, kHidden, width, false, dtype);
        const Tensor gate_up = poisoned(ctx, {in.groups.packed_rows(), 2 * width}, dtype);
        const Tensor act = poisoned(ctx, {in.groups.max_rows(), width}, dtype);
        ops::grouped_swiglu_forward(ctx, {in.x, in.w, in.groups, gate_up, act});
        EXPECT_TRUE(test::forward_within(in, gate_up, act));
        EXPECT_FALSE(test::forward_within(in, gate_up, act, 1.02));
        const bool overwritten = test::overwrite_neighbours(gate_up, in.groups);
        EXPECT_EQ(static_cast<bool>(test::forward_within(in, gate_up, act)), !overwritten);
      }
}

TEST(GroupedSwiglu, ForwardWithBiases) {
  test::CpuContext ctx(2);
  for (const auto& c : test::routing_cases())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int64_t width : {17, 290}) {
        test::SwigluCase in(ctx, c, kHidden, width, false, dtype);
        in.bias = random_tensor(ctx, {c.experts, 2 * width}, DType::kF32, 5);
        const Tensor gate_up = poisoned(ctx, {in.groups.packed_rows(), 2 * width}, dtype);
        const Tensor act = poisoned(ctx, {in.groups.max_rows(), width}, dtype);
        ops::grouped_swiglu_forward(ctx, {in.x, in.w, in.groups, gate_up, act, in.bias});
        EXPECT_TRUE(test::forward_within(in, gate_up, act));
        in.bias = c.experts > 1 ? test::of_wrong_experts(ctx, in.bias) : Tensor{};
        EXPECT_FALSE(test::forward_within(in, gate_up, act));
      }
}

TEST(GroupedSwiglu, Backward) {
  test::CpuContext ctx(2);
  for (const auto& c : cases())
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int64_t width : {17, 290}) {
        const test::SwigluCase in(ctx, c, kHidden, width, true, dtype);
        const test::SwigluOutputs out{.dgate_up = poisoned(ctx, {in.groups.max_rows(), 2 * width}, dtype),
                                      .act = poisoned(ctx, {in.groups.max_rows(), width}, dtype),
                                      .dweight = poisoned(ctx, {in.groups.max_rows()}, DType::kF32)};
        ops::grouped_swiglu_backward(ctx, {in.x, in.w, in.gate_up, in.groups, out.dgate_up, out.act, out.dweight});
        EXPECT_TRUE(test::backward_within(in, out));
        EXPECT_FALSE(test::backward_within(in, out, 1.1));
        const bool overwritten = test::overwrite_neighbours(in.gate_up, in.groups);
        EXPECT_EQ(static_cast<bool>(test::backward_within(in, out)), !overwritten);
      }
}

TEST(GroupedSwiglu, SameBitsForAnyThreads) {
  EXPECT_TRUE(test::same_for_any_threads([](Context& ctx) {
    const test::RoutingCase c{300, 2, 8, test::Choice::kRandom, 8};
    const test::SwigluCase in(ctx, c, kHidden, 300, true, DType::kF32);
    const Tensor dgate_up = poisoned(ctx, {in.groups.max_rows(), 600}, DType::kF32);
    const Tensor act = poisoned(ctx, {dgate_up.dim(0), 300}, DType::kF32),
                 dweight = poisoned(ctx, {dgate_up.dim(0)}, DType::kF32);
    ops::grouped_swiglu_backward(ctx, {in.x, in.w, in.gate_up, in.groups, dgate_up, act, dweight});
    return std::vector{dgate_up.rows(0, in.used()), act.rows(0, in.used()), dweight.rows(0, in.used())};
  }));
}

TEST(GroupedSwiglu, ChecksShapesAlsoOnMeta) {
  Context ctx = test::meta_context();
  const ops::Groups groups = ops::empty_groups(ctx, 6, 2, 4);
  const Tensor x = ctx.empty({12, 8}), w = ctx.empty({4, 32, 8}), gate_up = ctx.empty({12, 32}), act = ctx.empty({12, 16});
  ops::grouped_swiglu_forward(ctx, {x, w, groups, gate_up, act});
  EXPECT_THAT(error_of([&] { ops::grouped_swiglu_forward(ctx, {x, w, groups, act, act}); }),
              HasSubstr("[grouped_swiglu_forward] gate_up"));
  EXPECT_THAT(error_of([&] { ops::grouped_swiglu_backward(ctx, {x, w, gate_up, groups, gate_up, act, act}); }),
              HasSubstr("[grouped_swiglu_backward] w"));
}

}  // namespace
}  // namespace cistron
