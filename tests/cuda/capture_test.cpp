// A chain of the step's small operations, captured into a CUDA graph: no allocation beyond the arena, nothing that the host waits
// for, and a replay over poisoned outputs gives the same bits.
#include <cstring>

#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/attention.h"
#include "cistron/ops/elementwise.h"
#include "cistron/ops/embedding.h"
#include "cistron/ops/gather.h"
#include "cistron/ops/optimizer.h"
#include "cistron/ops/rms_norm.h"
#include "cistron/ops/router.h"
#include "cistron/ops/swiglu.h"
#include "tests/cuda/support.h"

namespace cistron::test {
namespace {

class CudaCapture : public OnCard {
 protected:
  static constexpr int64_t kTokens = 300, kHidden = 64, kExperts = 8, kTopK = 2, kVocab = 40;

  void SetUp() override {
    OnCard::SetUp();
    if (IsSkipped()) return;
    ids_ = device(random_ints(cpu_, {kTokens}, 1, kVocab));
    table_ = device(random_tensor(cpu_, {kVocab, kHidden}, DType::kBF16, 2));
    w_ = device(random_tensor(cpu_, {kHidden}, DType::kF32, 3));
    logits_ = device(random_tensor(cpu_, {kTokens, kExperts}, DType::kF32, 4));
    for (Tensor* t : {&dtable_, &m_, &v_, &master_})
      *t = device(tensor_of(cpu_, {kVocab, kHidden}, DType::kF32, std::vector<double>(kVocab * kHidden, 0.5)));
    dw_ = device(random_tensor(cpu_, {kHidden}, DType::kF32, 5));
    stats_ = device(tensor_of(cpu_, {2 * kExperts + 3}, DType::kF64, std::vector<double>(2 * kExperts + 3, 0.0)));
    const StepState state{
        .step = 1, .learning_rate = 0.1F, .bias_correction1 = 0.1F, .bias_correction2 = 0.05F, .clip_norm = 1.0F};
    state_ = cuda_.empty({static_cast<int64_t>(sizeof(state))}, DType::kU8);
    CISTRON_CUDA_CHECK(cudaMemcpy(state_.raw(), &state, sizeof(state), cudaMemcpyDefault));
  }

  /// Everything, on `ctx`'s stream.
  void chain(Context& ctx) {
    const Tensor x = ctx.empty({kTokens, kHidden}, DType::kBF16), rstd = ctx.empty({kTokens}, DType::kF32);
    ops::embedding_forward(ctx, {table_, ids_, x});
    ops::rms_norm_forward(ctx, {.x = x, .w = w_, .out = x, .rstd = rstd});
    ops::rope(ctx, {.qkv = x, .positions = ids_, .shape = {2, 1, 16}});
    const Tensor probs = ctx.empty({kTokens, kExperts}, DType::kF32), lse = ctx.empty({kTokens}, DType::kF32);
    const Tensor experts = ctx.empty({kTokens, kTopK}, DType::kI32), weights = ctx.empty({kTokens, kTopK}, DType::kF32);
    ops::router_forward(ctx, {logits_, probs, lse, experts, weights});
    ops::zero(ctx, {stats_});
    ops::router_stats(ctx, {probs, lse, experts, stats_});
    const ops::Groups groups = ops::empty_groups(ctx, kTokens, kTopK, kExperts);
    ops::build_groups(ctx, {.experts = experts, .weights = weights, .groups = groups});
    const Tensor rows = ctx.empty({groups.max_rows(), kHidden}, DType::kBF16), drows = ctx.empty(rows.shape(), DType::kBF16);
    const Tensor half = ctx.empty({groups.max_rows(), kHidden / 2}, DType::kBF16),
                 dweight = ctx.empty({groups.max_rows()}, DType::kF32);
    ops::gather(ctx, {x, groups, rows});
    ops::scaled_swiglu_forward(ctx, {rows, groups, half});
    ops::scaled_swiglu_backward(ctx, {half, rows, groups, drows, dweight});
    const Tensor dweights = ctx.empty({kTokens, kTopK}, DType::kF32), dlogits = ctx.empty(probs.shape(), DType::kF32);
    ops::gather_choices(ctx, {dweight, groups, dweights});
    ops::router_backward(ctx, {probs, lse, experts, weights, dweights, stats_, 0.1F, 0.1F, dlogits});
    const Tensor dx = ctx.empty(x.shape(), DType::kBF16);
    ops::combine(ctx, {drows, groups, dx});
    ops::clamp(ctx, {dx, 3.0F});
    ops::add(ctx, {dx, x, dx});
    ops::rms_norm_backward(ctx, {.dy = dx, .x = x, .w = w_, .rstd = rstd, .dx = dx, .accumulate_dx = false, .dw = {dw_}});
    ops::embedding_backward(ctx, {dx, ids_, {dtable_}});
    auto* state = static_cast<StepState*>(state_.raw());
    ops::grad_norm(ctx, {std::vector{dtable_, dw_}, state});
    const std::vector<ops::AdamWTensor> tensors{{master_, dtable_, m_, v_, table_, 0.1F}};
    ops::adamw(ctx, {.tensors = tensors, .state = state});
  }
  std::vector<Tensor> results() {
    std::vector<Tensor> all;
    for (const Tensor& t : {table_, master_, m_, v_, dtable_, dw_, stats_, state_}) all.push_back(host(t));
    return all;
  }

  Tensor ids_, table_, w_, logits_, dtable_, m_, v_, master_, dw_, stats_, state_;
};

TEST_F(CudaCapture, ReplaysAsTheEagerStepsDo) {
  std::vector<Tensor> start;
  const std::vector<Tensor> changed{table_, master_, m_, v_, dtable_, dw_, stats_, state_};
  for (const Tensor& t : changed) start.push_back(host(t));
  chain(cuda_);
  chain(cuda_);
  const auto want = results();

  for (size_t i = 0; i < changed.size(); ++i) copy_to_device(changed[i], start[i]);
  for (const Tensor& t : {dtable_, dw_}) poison_on_device(t);
  replay_captured(int64_t{64} << 20, 2, [&](Context& ctx) { chain(ctx); });
  const auto got = results();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], want[i])) << i;
  EXPECT_FALSE(same_bits(got[1], start[1]));  // and they did something
  StepState state;
  std::memcpy(&state, got.back().raw(), sizeof(state));
  EXPECT_EQ(state.finite, 1);
}

}  // namespace
}  // namespace cistron::test
