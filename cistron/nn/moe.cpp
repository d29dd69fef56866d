#include "cistron/nn/moe.h"

namespace cistron::nn {

namespace {

Sequential make_experts(const MoeBlock::Options& o) {
  return Sequential{
      Gather{},
      GroupedLinear{
          {.experts = o.experts, .in = o.hidden, .out = 2 * o.intermediate, .name = o.name + ".gate_up", .init_std = o.init_std}},
      ScaledSwiGlu{},
      GroupedLinear{
          {.experts = o.experts, .in = o.intermediate, .out = o.hidden, .name = o.name + ".down", .init_std = o.init_std}},
      Combine{}};
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

MoeBlock::Output MoeBlock::forward(Context& ctx, const Tensor& x, Saved& saved, const Tensor& stats, const Tensor& replay) const {
  const auto [experts, weights] = router_.forward(ctx, x, saved, stats, replay);
  Output output{.experts = experts};
  const ops::Groups groups = ops::empty_groups(ctx, x.dim(0), options_.top_k, options_.experts);
  ops::build_groups(ctx, {.experts = experts, .weights = weights, .groups = groups});
  output.y = options_.loop ? loop_.forward(ctx, x, groups, saved) : grouped_.forward(ctx, x, groups, saved);
  ctx.report(options_.name, output.y);
  return output;
}

Tensor MoeBlock::backward(Context& ctx, const Tensor& dy, const Router::AuxLosses& aux, Saved& saved) const {
  const auto [dx, dweights] = options_.loop ? loop_.backward(ctx, dy, saved) : grouped_.backward(ctx, dy, saved);
  router_.backward(ctx, dweights, aux, saved, dx);
  return dx;
}

std::vector<const Parameter*> MoeBlock::parameters() const {
  std::vector<const Parameter*> all{&router_.weight()};
  const auto experts = grouped_.parameters();
  all.insert(all.end(), experts.begin(), experts.end());
  return all;
}

}  // namespace cistron::nn
