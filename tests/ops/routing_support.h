#pragma once
// Random routings for the tests of operations on routed rows.
#include <algorithm>

#include "cistron/cpu/ref/groups.h"
#include "cistron/ops/groups.h"
#include "tests/ops/support.h"

namespace cistron::test {

enum class Choice { kRandom, kAllToLast, kLastExpertEmpty };

/// [T, k] i32, distinct in each row.
inline Tensor random_choices(const Context& ctx, int64_t tokens, int64_t top_k, int64_t experts, Choice choice, uint64_t seed) {
  const std::vector<double> keys = to_double(random_tensor(ctx, {tokens, experts}, DType::kF64, seed));
  std::vector<double> chosen;
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<std::pair<double, int64_t>> order;
    for (int64_t e = 0; e < experts; ++e) {
      double key = keys[static_cast<size_t>(t * experts + e)];
      if (e == experts - 1 && choice != Choice::kRandom) key += choice == Choice::kAllToLast ? 1e3 : -1e3;
      order.emplace_back(-key, e);
    }
    std::sort(order.begin(), order.end());
    for (int64_t j = 0; j < top_k; ++j) chosen.push_back(static_cast<double>(order[static_cast<size_t>(j)].second));
  }
  return tensor_of(ctx, {tokens, top_k}, DType::kI32, chosen);
}

/// `Groups` from the reference's layout, for any alignment, with `spare` rows past the end that nobody may touch.
inline ops::Groups make_groups(const Context& ctx, const Tensor& experts, int64_t num_experts, const Tensor& weights,
                               int64_t alignment, int64_t spare = 3, int32_t first_expert = 0) {
  const auto e = to_double(experts);
  const auto w = to_double(weights);
  const cpu::ref::Matrix<int32_t> choices(experts.dim(0), experts.dim(1), std::vector<int32_t>(e.begin(), e.end()));
  const cpu::ref::Groups layout = cpu::ref::build_groups(choices, num_experts, alignment, first_expert);
  const auto as_tensor = [&](const Shape& shape, const std::vector<int32_t>& v) {
    return tensor_of(ctx, shape, DType::kI32, std::vector<double>(v.begin(), v.end()));
  };
  const auto rows = static_cast<int64_t>(layout.source_row.size()) + spare;
  auto source_row = layout.source_row;
  source_row.resize(static_cast<size_t>(rows), 1 << 30);
  std::vector<double> row_weight(static_cast<size_t>(rows), 0.0);
  for (size_t i = 0; i < w.size(); ++i)
    if (layout.token_rows.data[i] >= 0) row_weight[static_cast<size_t>(layout.token_rows.data[i])] = w[i];
  return {.starts = as_tensor({num_experts + 1}, layout.starts),
          .counts = as_tensor({num_experts}, layout.counts),
          .source_row = as_tensor({rows}, source_row),
          .weight = tensor_of(ctx, {rows}, DType::kF32, row_weight),
          .token_rows = as_tensor(experts.shape(), layout.token_rows.data)};
}

struct RoutingCase {
  int64_t tokens, top_k, experts;
  Choice choice;
  int64_t alignment;
};

/// One token, one expert, k = E, an expert without rows, all to one; packed and with pad rows.
inline std::vector<RoutingCase> routing_cases() {
  std::vector<RoutingCase> cases;
  for (int64_t alignment : {1, 8, 128}) {
    cases.push_back({1, 1, 1, Choice::kRandom, alignment});
    cases.push_back({1, 2, 8, Choice::kRandom, alignment});
    cases.push_back({50, 4, 4, Choice::kRandom, alignment});
    cases.push_back({130, 2, 8, Choice::kLastExpertEmpty, alignment});
    cases.push_back({37, 1, 5, Choice::kAllToLast, alignment});
    cases.push_back({257, 3, 16, Choice::kRandom, alignment});
  }
  return cases;
}

inline ops::Groups groups_of(const Context& ctx, const RoutingCase& c, uint64_t seed) {
  const Tensor experts = random_choices(ctx, c.tokens, c.top_k, c.experts, c.choice, seed);
  return make_groups(ctx, experts, c.experts, random_tensor(ctx, experts.shape(), DType::kF32, seed + 1), c.alignment);
}

inline std::vector<int32_t> ints(const Tensor& t) { return {t.span<int32_t>().begin(), t.span<int32_t>().end()}; }

/// The source rows in use: up to starts[E].
inline std::vector<int32_t> used_source_rows(const ops::Groups& groups) {
  auto rows = ints(groups.source_row);
  rows.resize(static_cast<size_t>(ints(groups.starts).back()));
  return rows;
}

/// NaN in the pad rows of [R, cols] and in the rows past the end.
inline void poison_unused_rows(const Tensor& tensor, const ops::Groups& groups) {
  const auto used = used_source_rows(groups);
  for (int64_t r = 0; r < tensor.dim(0); ++r)
    if (r >= static_cast<int64_t>(used.size()) || used[static_cast<size_t>(r)] < 0) poison(tensor.rows(r, 1));
}

}  // namespace cistron::test
