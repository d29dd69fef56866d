#pragma once
// Random routings for the micro-benchmarks of operations on routed rows.
#include "bench/kernels/support.h"
#include "cistron/ops/groups.h"
#include "cistron/ops/router.h"

namespace cistron::bench {

struct Routed {
  Tensor logits, probs, lse, experts, weights;
  ops::Groups groups;
};

inline Routed route(Context& ctx, int64_t tokens, int64_t top_k, int64_t num_experts) {
  Routed r{.logits = normals(ctx, {tokens, num_experts}, DType::kF32),
           .probs = ctx.empty({tokens, num_experts}, DType::kF32),
           .lse = ctx.empty({tokens}, DType::kF32),
           .experts = ctx.empty({tokens, top_k}, DType::kI32),
           .weights = ctx.empty({tokens, top_k}, DType::kF32),
           .groups = ops::empty_groups(ctx, tokens, top_k, num_experts)};
  ops::router_forward(ctx, {r.logits, r.probs, r.lse, r.experts, r.weights});
  ops::build_groups(ctx, {r.experts, r.weights, r.groups});
  return r;
}

}  // namespace cistron::bench
