#pragma once
#include <numeric>
#include <string>
#include <vector>

#include "cistron/core/context.h"
#include "cistron/ops/copy.h"
#include "cistron/ops/device_memory.h"
#include "cistron/ops/gather.h"

namespace cistron::nn {

/// Token order to expert order: [T, H] -> [R, H].
inline Tensor gathered(Context& ctx, const Tensor& x, const ops::Groups& groups) {
  Tensor rows = ctx.empty({groups.max_rows(), x.dim(1)}, x.dtype());
  ops::gather(ctx, {.x = x, .groups = groups, .out = rows});
  return rows;
}

/// And back, summing a token's rows: [R, H] -> [T, H].
inline Tensor combined(Context& ctx, const Tensor& rows, const ops::Groups& groups) {
  Tensor tokens = ctx.empty({groups.num_tokens(), rows.dim(1)}, rows.dtype());
  ops::combine(ctx, {.x = rows, .groups = groups, .out = tokens});
  return tokens;
}

/// Tells an observer of rows in expert order: summed by token, since pad rows may hold anything. In memory of its own, which no
/// plan knows of.
inline void report_rows(Context& ctx, const std::string& name, const Tensor& rows, const ops::Groups& groups) {
  if (!ctx.observe) return;
  const auto arena = Arena::growing("observed", ctx.device, ops::device_memory(ctx.device));
  const Tensor tokens = Tensor::empty(arena, {groups.num_tokens(), rows.dim(1)}, rows.dtype());
  ops::combine(ctx, {.x = rows, .groups = groups, .out = tokens});
  ctx.report(name, tokens);
}

/// Of a packed tensor: the rows in use.
inline void report_packed_rows(Context& ctx, const std::string& name, const Tensor& packed, const ops::Groups& groups) {
  if (!ctx.observe) return;
  std::vector<int32_t> counts(static_cast<size_t>(groups.num_experts()));
  ops::copy(ctx, {.x = groups.counts, .out = Tensor::view(std::span(counts))});
  ctx.report(name, packed.rows(0, std::accumulate(counts.begin(), counts.end(), int64_t{0})));
}

}  // namespace cistron::nn
