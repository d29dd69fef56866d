#include "cistron/nn/sequential.h"

#include <algorithm>

#include "cistron/core/error.h"
#include "cistron/ops/gather.h"

namespace cistron::nn {

namespace {

bool starts_with(MatchedOperations operations, const std::vector<OperationKind>& pattern) {
  return pattern.size() <= operations.size() &&
         std::equal(pattern.begin(), pattern.end(), operations.begin(),
                    [](OperationKind kind, const auto& operation) { return operation->kind() == kind; });
}

}  // namespace

void Sequential::match(std::span<const Fusion> table) {
  matches_.clear();
  for (size_t i = 0; i < operations_.size(); ++i)
    for (const Fusion& fusion : table) {
      const auto rest = MatchedOperations(operations_).subspan(i);
      if (!starts_with(rest, fusion.pattern)) continue;
      const auto matched = rest.first(fusion.pattern.size());
      matches_.push_back({.begin = i,
                          .end = i + matched.size(),
                          .name = fusion.name,
                          .refusal = [=, of = fusion.refusal](const Context& ctx) { return of(ctx, matched); },
                          .fused = fusion.make(matched)});
    }
}

std::string Sequential::refusal(const Context& ctx, const Match& match) const {
  return ctx.fuse ? match.refusal(ctx) : "fusing is switched off";
}

std::vector<Sequential::Step> Sequential::steps(const Context& ctx) const {
  std::vector<Step> steps;
  for (size_t i = 0; i < operations_.size(); i = steps.back().end) {
    const auto taken = std::find_if(matches_.begin(), matches_.end(),
                                    [&](const Match& match) { return match.begin == i && refusal(ctx, match).empty(); });
    if (taken != matches_.end())
      steps.push_back({i, taken->end, taken->fused.get()});
    else
      steps.push_back({i, i + 1, operations_[i].get()});
  }
  return steps;
}

void Sequential::run(Context& ctx, Flow& flow, Saved& saved) const {
  for (const Step& step : steps(ctx)) step.operation->run(ctx, flow, saved);
}

void Sequential::run_back(Context& ctx, Flow& gradient, Saved& saved) const {
  const auto all = steps(ctx);
  for (auto step = all.rbegin(); step != all.rend(); ++step) step->operation->run_back(ctx, gradient, saved);
}

Tensor Sequential::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const {
  Flow flow{.x = x, .groups = &groups};
  run(ctx, flow, saved);
  saved.push("sequential.groups", groups);
  return flow.x;
}

Sequential::Gradients Sequential::backward(Context& ctx, const Tensor& dy, Saved& saved) const {
  const ops::Groups groups = saved.pop_groups("sequential.groups");
  Flow gradient{.x = dy, .groups = &groups};
  run_back(ctx, gradient, saved);
  Gradients gradients{.dx = gradient.x};
  if (!gradient.row_weight.defined()) return gradients;
  gradients.dweights = ctx.empty(groups.token_rows.shape(), DType::kF32);
  ops::gather_choices(ctx, {.rows = gradient.row_weight, .groups = groups, .out = gradients.dweights});
  return gradients;
}

std::string Sequential::plan(const Context& ctx) const {
  std::string text;
  for (const Step& step : steps(ctx)) {
    const size_t count = step.end - step.begin;
    text += fmt::format("{}: {}\n", step.operation->describe(), count == 1 ? "one operation" : fmt::format("fuses {}", count));
  }
  for (const std::string& line : refusals(ctx)) text += line + '\n';
  return text;
}

std::vector<std::string> Sequential::refusals(const Context& ctx) const {
  const auto all = steps(ctx);
  const auto runs_fused = [&](const Match& match) {
    return std::ranges::any_of(all, [&](const Step& step) { return step.begin <= match.begin && match.end <= step.end; });
  };
  std::vector<std::string> lines;
  for (const Match& match : matches_)
    if (!runs_fused(match)) lines.push_back(fmt::format("{}: not fused, {}", match.name, refusal(ctx, match)));
  return lines;
}

std::vector<const Parameter*> Sequential::parameters() const {
  std::vector<const Parameter*> all;
  for (const auto& operation : operations_) {
    const auto some = operation->parameters();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace cistron::nn
