#include "cistron/ops/router.h"

#include "cistron/core/error.h"
#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"
#include "cistron/ops/scratch.h"

namespace cistron::ops {

namespace {

constexpr int64_t kPartialStats = 512;  // sums on CUDA, each of some tokens

void check_choices(const char* op, const Tensor& probs, const Tensor& experts) {
  CISTRON_CHECK(probs.shape().rank() == 2 && experts.shape().rank() == 2,
                "[{}] probs is {}, experts {}, wanted [T, E] and [T, k]", op, to_string(probs.shape()),
                to_string(experts.shape()));
  check_tensor(op, "probs", probs, probs.shape(), DType::kF32);
  check_tensor(op, "experts", experts, {probs.dim(0), experts.dim(1)}, DType::kI32);
  CISTRON_CHECK(experts.dim(1) >= 1 && experts.dim(1) <= probs.dim(1), "[{}] top {} of {} experts", op, experts.dim(1),
                probs.dim(1));
}

void check_stats(const char* op, const Tensor& probs, const Tensor& stats) {
  check_tensor(op, "stats", stats, {2 * probs.dim(1) + 3}, DType::kF64);
}

}  // namespace

void router_forward(Context& ctx, const RouterForward& args) {
  constexpr const char* kOp = "router_forward";
  check_choices(kOp, args.probs, args.experts);
  check_tensor(kOp, "logits", args.logits, args.probs.shape(), DType::kF32);
  check_tensor(kOp, "lse", args.lse, {args.probs.dim(0)}, DType::kF32);
  check_tensor(kOp, "weights", args.weights, args.experts.shape(), DType::kF32);
  dispatch(kOp, ctx, args, cpu::router_forward, cuda::router_forward);
}

void router_stats(Context& ctx, const RouterStats& args) {
  constexpr const char* kOp = "router_stats";
  check_choices(kOp, args.probs, args.experts);
  check_tensor(kOp, "lse", args.lse, {args.probs.dim(0)}, DType::kF32);
  check_stats(kOp, args.probs, args.stats);
  RouterStats with_scratch = args;
  with_scratch.partial = cuda_scratch(ctx, {kPartialStats, args.stats.numel()}, DType::kF64);
  dispatch(kOp, ctx, with_scratch, cpu::router_stats, cuda::router_stats);
}

void router_backward(Context& ctx, const RouterBackward& args) {
  constexpr const char* kOp = "router_backward";
  check_choices(kOp, args.probs, args.experts);
  check_tensor(kOp, "lse", args.lse, {args.probs.dim(0)}, DType::kF32);
  check_tensor(kOp, "weights", args.weights, args.experts.shape(), DType::kF32);
  check_tensor(kOp, "dweights", args.dweights, args.experts.shape(), DType::kF32);
  check_stats(kOp, args.probs, args.stats);
  check_tensor(kOp, "dlogits", args.dlogits, args.probs.shape(), DType::kF32);
  dispatch(kOp, ctx, args, cpu::router_backward, cuda::router_backward);
}

}  // namespace cistron::ops
