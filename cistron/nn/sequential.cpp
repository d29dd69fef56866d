#include "cistron/nn/sequential.h"

#include <algorithm>

#include "cistron/core/error.h"
#include "cistron/ops/gather.h"

namespace cistron::nn {

namespace {

bool starts_with(std::span<const std::unique_ptr<Operation>> operations, const std::vector<OperationKind>& pattern) {
  return pattern.size() <= operations.size() &&
         std::equal(pattern.begin(), pattern.end(), operations.begin(),
                    [](OperationKind kind, const auto& operation) { return operation->kind() == kind; });
}

}  // namespace

std::span<const Fusion> fusion_table() { return {}; }

Tensor Sequential::forward(Context& ctx, const Tensor& x, const ops::Groups& groups, Saved& saved) const {
  Tensor y = x;
  for (const auto& operation : operations_) y = operation->forward(ctx, y, groups, saved);
  saved.push("sequential.groups", groups);
  return y;
}

Sequential::Gradients Sequential::backward(Context& ctx, const Tensor& dy, Saved& saved) const {
  const ops::Groups groups = saved.pop_groups("sequential.groups");
  Gradients gradients{.dx = dy};
  Tensor drow_weight;
  for (auto operation = operations_.rbegin(); operation != operations_.rend(); ++operation)
    gradients.dx = (*operation)->backward(ctx, gradients.dx, groups, saved, drow_weight);
  if (!drow_weight.defined()) return gradients;
  gradients.dweights = ctx.empty(groups.token_rows.shape(), DType::kF32);
  ops::gather_choices(ctx, {.rows = drow_weight, .groups = groups, .out = gradients.dweights});
  return gradients;
}

std::string Sequential::plan(const Context& ctx, std::span<const Fusion> table) const {
  std::string text;
  const std::span<const std::unique_ptr<Operation>> all(operations_);
  for (size_t i = 0; i < all.size(); ++i) {
    text += fmt::format("{}: one operation\n", all[i]->describe());
    for (const Fusion& fusion : table) {
      if (!starts_with(all.subspan(i), fusion.pattern)) continue;
      const std::string refusal = fusion.refusal(ctx, all.subspan(i, fusion.pattern.size()));
      text += fmt::format("  {}: {}\n", fusion.name, refusal.empty() ? "fused" : "not fused, " + refusal);
    }
  }
  if (table.empty()) text += "nothing is fused: this build's table of fusions is empty\n";
  return text;
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
