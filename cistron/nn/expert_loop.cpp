#include "cistron/nn/expert_loop.h"

#include <vector>

#include "cistron/core/checked.h"
#include "cistron/ops/copy.h"
#include "cistron/ops/gather.h"
#include "cistron/ops/matmul.h"
#include "cistron/ops/swiglu.h"

namespace cistron::nn {

namespace {

// The rows of one expert, as a routing of its own.
struct Segment {
  int64_t expert;
  int64_t begin;
  int64_t count;
};

std::vector<int32_t> on_host(Context& ctx, const Tensor& numbers) {
  std::vector<int32_t> values(static_cast<size_t>(numbers.numel()));
  ops::copy(ctx, {.x = numbers, .out = Tensor::view(std::span(values))});
  return values;
}

/// The experts' segments, read from the device, and each one's routing there.
class Segments {
 public:
  Segments(Context& ctx, const ops::Groups& groups)
      : groups_(groups), bounds_(ctx.empty({3 * groups.num_experts()}, DType::kI32)) {
    const auto starts = on_host(ctx, groups.starts), counts = on_host(ctx, groups.counts);
    std::vector<int32_t> bounds;
    for (size_t e = 0; e < counts.size(); ++e) {
      all.push_back({static_cast<int64_t>(e), starts[e], counts[e]});
      bounds.insert(bounds.end(), {0, counts[e], counts[e]});
    }
    ops::copy(ctx, {.x = Tensor::view(std::span(bounds)), .out = bounds_});
  }

  [[nodiscard]] ops::Groups one_group(const Segment& segment) const {
    return {.starts = bounds_.rows(3 * segment.expert, 2),
            .counts = bounds_.rows(3 * segment.expert + 2, 1),
            .source_row = groups_.source_row.rows(segment.begin, segment.count),
            .weight = groups_.weight.rows(segment.begin, segment.count),
            .token_rows = groups_.token_rows};
  }

  std::vector<Segment> all;

 private:
  const ops::Groups& groups_;
  Tensor bounds_;  // of each expert: 0, its count, its count
};

Tensor of_expert(const Tensor& w, int64_t expert) { return w.rows(expert, 1).reshape({w.dim(1), w.dim(2)}); }

}  // namespace

Tensor ExpertLoop::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const {
  const Tensor w1 = ctx.weights(*gate_up_), w2 = ctx.weights(*down_);
  const int64_t rows = groups.max_rows();
  Tensor gathered = ctx.empty({rows, x.dim(1)}), gate_up = ctx.empty({rows, w1.dim(1)});
  Tensor activation = ctx.empty({rows, w2.dim(2)}), y = ctx.empty({rows, x.dim(1)});
  ops::gather(ctx, {.x = x, .groups = groups, .out = gathered});
  const Segments segments(ctx, groups);
  for (const Segment& s : segments.all) {
    const ops::Groups one = segments.one_group(s);
    const Tensor x_e = gathered.rows(s.begin, s.count), h_e = gate_up.rows(s.begin, s.count);
    const Tensor a_e = activation.rows(s.begin, s.count), y_e = y.rows(s.begin, s.count);
    ops::matmul_forward(ctx, {.x = x_e, .w = of_expert(w1, s.expert), .out = h_e});
    ops::scaled_swiglu_forward(ctx, {.gate_up = h_e, .groups = one, .out = a_e});
    ops::matmul_forward(ctx, {.x = a_e, .w = of_expert(w2, s.expert), .out = y_e});
  }
  Tensor out = ctx.empty(x.shape());
  ops::combine(ctx, {.x = y, .groups = groups, .out = out});
  saved.push("loop.x", gathered);
  saved.push("loop.gate_up", gate_up);
  saved.push("loop.activation", activation);
  saved.push("loop.groups", groups);
  ctx.report(down_->name, out);
  return out;
}

Sequential::Gradients ExpertLoop::backward(Context& ctx, const Tensor& dy, Saved& saved) const {
  const ops::Groups groups = saved.pop_groups("loop.groups");
  const Tensor activation = saved.pop("loop.activation"), gate_up = saved.pop("loop.gate_up"), x = saved.pop("loop.x");
  const Tensor w1 = ctx.weights(*gate_up_), w2 = ctx.weights(*down_);
  const GradSink dw1 = ctx.grad(*gate_up_), dw2 = ctx.grad(*down_);
  Tensor dx = ctx.empty(x.shape()), drow_weight = ctx.empty({x.dim(0)}, DType::kF32);
  Tensor dy_rows = ctx.empty(x.shape()), da = ctx.empty(activation.shape()), dh = ctx.empty(gate_up.shape());
  ops::gather(ctx, {.x = dy, .groups = groups, .out = dy_rows});
  const Segments segments(ctx, groups);
  for (const Segment& s : segments.all) {
    const ops::Groups one = segments.one_group(s);
    const Tensor x_e = x.rows(s.begin, s.count), h_e = gate_up.rows(s.begin, s.count);
    const Tensor a_e = activation.rows(s.begin, s.count), dx_e = dx.rows(s.begin, s.count);
    const Tensor dy_e = dy_rows.rows(s.begin, s.count), da_e = da.rows(s.begin, s.count), dh_e = dh.rows(s.begin, s.count);
    ops::matmul_wgrad(ctx, {.dy = dy_e, .x = a_e, .out = of_expert(dw2.grad, s.expert), .accumulate = dw2.accumulate});
    ops::matmul_dgrad(ctx, {.dy = dy_e, .w = of_expert(w2, s.expert), .out = da_e});
    ops::scaled_swiglu_backward(
        ctx, {.dy = da_e, .gate_up = h_e, .groups = one, .dgate_up = dh_e, .dweight = drow_weight.rows(s.begin, s.count)});
    ops::matmul_wgrad(ctx, {.dy = dh_e, .x = x_e, .out = of_expert(dw1.grad, s.expert), .accumulate = dw1.accumulate});
    ops::matmul_dgrad(ctx, {.dy = dh_e, .w = of_expert(w1, s.expert), .out = dx_e});
  }
  ctx.grad_ready(*down_);
  ctx.grad_ready(*gate_up_);
  Sequential::Gradients gradients{.dx = ctx.empty({groups.num_tokens(), x.dim(1)}),
                                  .dweights = ctx.empty(groups.token_rows.shape(), DType::kF32)};
  ops::combine(ctx, {.x = dx, .groups = groups, .out = gradients.dx});
  ops::gather_choices(ctx, {.rows = drow_weight, .groups = groups, .out = gradients.dweights});
  return gradients;
}

}  // namespace cistron::nn
