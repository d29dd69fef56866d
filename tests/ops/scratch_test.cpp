// What the CUDA kernels take for themselves is planned by a run on the meta device for a card, and by no other.
#include "cistron/ops/scratch.h"

#include <gtest/gtest.h>

#include "cistron/ops/embedding.h"
#include "cistron/ops/groups.h"
#include "cistron/ops/optimizer.h"
#include "cistron/ops/rms_norm.h"
#include "cistron/ops/router.h"
#include "tests/ops/support.h"

namespace cistron::test {
namespace {

TEST(Scratch, IsPlannedForACardAlone) {
  const std::vector<std::function<void(const Context&, Context&)>> operations{
      // operands from one arena, scratch from another
      [](const Context& ctx, Context& run) {
        const Tensor x = ctx.empty({6, 8}, DType::kF32), w = ctx.empty({8}, DType::kF32), rstd = ctx.empty({6}, DType::kF32);
        ops::rms_norm_backward(run, {.dy = x, .x = x, .w = w, .rstd = rstd, .dx = x, .dw = {w}});
      },
      [](const Context& ctx, Context& run) {
        const Tensor dy = ctx.empty({6, 8}, DType::kF32), ids = ctx.empty({6}, DType::kI32),
                     table = ctx.empty({5, 8}, DType::kF32);
        ops::embedding_backward(run, {.dy = dy, .tokens = ids, .dtable = {table}});
      },
      [](const Context& ctx, Context& run) {
        const Tensor experts = ctx.empty({6, 2}, DType::kI32), weights = ctx.empty({6, 2}, DType::kF32);
        ops::build_groups(run, {.experts = experts, .weights = weights, .groups = ops::empty_groups(ctx, 6, 2, 4)});
      },
      [](const Context& ctx, Context& run) {
        const Tensor probs = ctx.empty({6, 4}, DType::kF32), lse = ctx.empty({6}, DType::kF32),
                     experts = ctx.empty({6, 2}, DType::kI32), stats = ctx.empty({11}, DType::kF64);
        ops::router_stats(run, {.probs = probs, .lse = lse, .experts = experts, .stats = stats});
      },
      [](const Context& ctx, Context& run) {
        const std::vector<Tensor> grads{ctx.empty({6}, DType::kF32)};
        StepState state;
        ops::grad_norm(run, {.grads = grads, .state = &state});
      }};
  for (size_t i = 0; i < operations.size(); ++i) {
    const auto peak = [&](DeviceKind planned) {
      Context ctx = meta_context(), run = meta_context();
      ctx.planned = run.planned = Device{planned};
      operations[i](ctx, run);
      return run.arena->peak();
    };
    EXPECT_EQ(peak(DeviceKind::kCpu), 0) << i;
    EXPECT_GT(peak(DeviceKind::kCuda), 0) << i;
  }
}

}  // namespace
}  // namespace cistron::test
