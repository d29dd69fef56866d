#include "cistron/nn/moe.h"

#include "cistron/core/checked.h"
#include "cistron/core/error.h"

namespace cistron::nn {

namespace {

constexpr const char* kLoops = "the experts run one after the other";

Sequential make_experts(const MoeBlock::Options& o) {
  const dist::Range held = o.held.value_or(dist::Range{0, -1});
  const auto linear = [&](const char* name, int64_t in, int64_t out, int64_t sections) {
    return GroupedLinear{{.experts = o.experts,
                          .in = in,
                          .out = out,
                          .name = o.name + name,
                          .init_std = o.init_std,
                          .mx_sections = o.mxfp8 ? sections : 0,
                          .begin = held.begin,
                          .count = held.count}};
  };
  return Sequential{Gather{}, linear(".gate_up", o.hidden, 2 * o.intermediate, 2), ScaledSwiGlu{},
                    linear(".down", o.intermediate, o.hidden, 1), Combine{}};
}

}  // namespace

MoeBlock::MoeBlock(const Options& options)
    : options_(options),
      router_({.name = options.name + ".router",
               .hidden = options.hidden,
               .experts = options.experts,
               .top_k = options.top_k,
               .init_std = options.init_std}),
      grouped_(make_experts(options)),
      loop_(*grouped_.parameters()[0], *grouped_.parameters()[1]) {}

bool MoeBlock::is_spread(const Context& ctx) const {
  const bool spread = ctx.mesh != nullptr && ctx.mesh->shape().ep > 1;
  const dist::Range all{0, options_.experts};
  const dist::Range mine =
      spread ? dist::experts_of(options_.experts, ctx.mesh->shape().ep, ctx.mesh->shape().ep_index(ctx.mesh->world().rank()))
             : all;
  const dist::Range held = options_.held.value_or(all);
  CISTRON_CHECK(held == mine, "[moe] {} holds experts {} to {}, by the mesh it should hold {} to {}", options_.name, held.begin,
                held.end() - 1, mine.begin, mine.end() - 1);
  return spread;
}

ops::Groups MoeBlock::groups_of(Context& ctx, const Router::Routing& routing, const dist::ExpertRoom& room) const {
  const dist::Range held = options_.held.value_or(dist::Range{0, options_.experts});
  const ops::Groups groups = ops::empty_groups(ctx, room.tokens, options_.top_k, held.count, room.rows);
  ops::build_groups(
      ctx,
      {.experts = routing.experts, .weights = routing.weights, .groups = groups, .first_expert = narrow<int32_t>(held.begin)});
  return groups;
}

Tensor MoeBlock::experts_forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const {
  return options_.loop ? loop_.forward(ctx, x, groups, saved) : grouped_.forward(ctx, x, groups, saved);
}

Sequential::Gradients MoeBlock::experts_backward(Context& ctx, const Tensor& dy, Saved& saved) const {
  return options_.loop ? loop_.backward(ctx, dy, saved) : grouped_.backward(ctx, dy, saved);
}

MoeBlock::Output MoeBlock::forward(Context& ctx, const Tensor& x, Saved& saved, const Tensor& stats, const Tensor& replay) const {
  const Router::Routing routing = router_.forward(ctx, x, saved, stats, replay);
  Output output{.experts = routing.experts};
  if (is_spread(ctx))
    output.y = forward_spread(ctx, x, routing, saved);
  else
    output.y = experts_forward(ctx, x, groups_of(ctx, routing, {x.dim(0), checked_mul(x.dim(0), options_.top_k)}), saved);
  ctx.report(options_.name, output.y);
  return output;
}

Tensor MoeBlock::backward(Context& ctx, const Tensor& dy, const Router::AuxLosses& aux, Saved& saved) const {
  const auto [dx, dweights] = is_spread(ctx) ? backward_spread(ctx, dy, saved) : experts_backward(ctx, dy, saved);
  router_.backward(ctx, dweights, aux, saved, dx);
  return dx;
}

Tensor MoeBlock::forward_spread(Context& ctx, const Tensor& x, const Router::Routing& routing, Saved& saved) const {
  const dist::ExpertRoute route = dist::plan_route(ctx, routing.experts, options_.experts);
  Tensor parts;
  {
    const Router::Routing received{.experts = dist::send_choices(ctx, route, routing.experts),
                                   .weights = dist::send_tokens(ctx, route, routing.weights)};
    const ops::Groups groups = groups_of(ctx, received, route.room);
    parts = experts_forward(ctx, dist::send_tokens(ctx, route, x), groups, saved);
    saved.push("exchange.received", groups.token_rows);  // backward asks for its shape alone
  }
  saved.push("exchange.receive_rows", route.receive_rows);
  saved.push("exchange.sends", route.sends);
  return dist::return_tokens(ctx, route, parts);
}

Sequential::Gradients MoeBlock::backward_spread(Context& ctx, const Tensor& dy, Saved& saved) const {
  dist::ExpertRoute route{.sends = saved.pop_groups("exchange.sends")};
  route.receive_rows = saved.pop("exchange.receive_rows");
  route.room.tokens = saved.pop("exchange.received").dim(0);
  const auto [dx, dweights] = experts_backward(ctx, dist::send_tokens(ctx, route, dy), saved);
  return {.dx = dist::return_tokens(ctx, route, dx), .dweights = dist::return_tokens(ctx, route, dweights)};
}

std::string MoeBlock::plan(const Context& ctx) const { return options_.loop ? fmt::format("{}\n", kLoops) : grouped_.plan(ctx); }

std::string MoeBlock::unfused(const Context& ctx) const {
  if (options_.loop) return kLoops;
  const std::vector<std::string> refusals = grouped_.refusals(ctx);
  return fmt::format("{}", fmt::join(refusals, "; "));
}

std::vector<const Parameter*> MoeBlock::parameters() const {
  std::vector<const Parameter*> all{&router_.weight()};
  const auto experts = grouped_.parameters();
  all.insert(all.end(), experts.begin(), experts.end());
  return all;
}

}  // namespace cistron::nn
