#pragma once
// Random routings for the tests of operations on routed rows.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

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
  int64_t elsewhere = 0;  // that many experts before these and as many after them are on other ranks
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

/// Those of one alignment, tiles with a part of one, and experts of which other ranks have some.
inline std::vector<RoutingCase> packed_cases(int64_t alignment) {
  std::vector<RoutingCase> cases{{400, 2, 4, Choice::kRandom, alignment},
                                 {128, 1, 2, Choice::kAllToLast, alignment},
                                 {90, 3, 5, Choice::kRandom, alignment, 2}};
  for (const RoutingCase& c : routing_cases())
    if (c.alignment == alignment) cases.push_back(c);
  return cases;
}

inline ops::Groups groups_of(const Context& ctx, const RoutingCase& c, uint64_t seed) {
  const Tensor experts = random_choices(ctx, c.tokens, c.top_k, c.experts + 2 * c.elsewhere, c.choice, seed);
  return make_groups(ctx, experts, c.experts, random_tensor(ctx, experts.shape(), DType::kF32, seed + 1), c.alignment, 3,
                     static_cast<int32_t>(c.elsewhere));
}

inline std::vector<int32_t> ints(const Tensor& t) { return {t.span<int32_t>().begin(), t.span<int32_t>().end()}; }

inline void copy_rows(const Tensor& from, const Tensor& to) {
  std::memcpy(to.raw(), from.raw(), static_cast<size_t>(to.bytes()));
}

/// The source rows in use: up to starts[E].
inline std::vector<int32_t> used_source_rows(const ops::Groups& groups) {
  auto rows = ints(groups.source_row);
  rows.resize(static_cast<size_t>(groups.starts.span<int32_t>().back()));
  return rows;
}

/// Of each row up to starts[E], where it lies in a packed tensor; -1 for pad rows.
inline std::vector<int64_t> packed_places(const ops::Groups& groups) {
  std::vector<int64_t> places;
  int64_t next = 0;
  for (const int32_t source : used_source_rows(groups)) places.push_back(source < 0 ? -1 : next++);
  return places;
}
inline int64_t rows_in_use(const ops::Groups& groups) {
  const auto counts = ints(groups.counts);
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

inline Tensor rows_after_use(const Tensor& packed, const ops::Groups& groups) {
  const int64_t rows = rows_in_use(groups);
  return packed.rows(rows, packed.dim(0) - rows);
}
inline bool all_nan(const Tensor& tensor) {
  const auto values = to_double(tensor);
  return std::all_of(values.begin(), values.end(), [](double v) { return std::isnan(v); });
}

/// A packed tensor's rows at their places among pad rows, which are zeros.
inline cpu::ref::Matrix<double> unpacked(const Tensor& packed, const ops::Groups& groups) {
  const auto places = packed_places(groups);
  const auto values = to_matrix(packed);
  cpu::ref::Matrix<double> rows(std::ssize(places), values.cols);
  for (int64_t r = 0; r < rows.rows; ++r)
    for (int64_t c = 0, place = places[static_cast<size_t>(r)]; place >= 0 && c < rows.cols; ++c) rows(r, c) = values(place, c);
  return rows;
}
/// The same as a tensor, with poison in all other rows; and back.
inline Tensor unpacked(const Context& ctx, const Tensor& packed, const ops::Groups& groups) {
  const Tensor rows = poisoned(ctx, {groups.max_rows(), packed.dim(1)}, packed.dtype());
  const auto places = packed_places(groups);
  for (size_t r = 0; r < places.size(); ++r)
    if (places[r] >= 0) copy_rows(packed.rows(places[r], 1), rows.rows(static_cast<int64_t>(r), 1));
  return rows;
}
inline Tensor packed(const Context& ctx, const Tensor& rows, const ops::Groups& groups) {
  const Tensor packed = poisoned(ctx, {groups.packed_rows(), rows.dim(1)}, rows.dtype());
  const auto places = packed_places(groups);
  for (size_t r = 0; r < places.size(); ++r)
    if (places[r] >= 0) copy_rows(rows.rows(static_cast<int64_t>(r), 1), packed.rows(places[r], 1));
  return packed;
}

/// For controls: a packed tensor in which an expert's last box of 16 rows went over the next one's first. False where all rows
/// end with a box.
inline bool overwrite_neighbours(const Tensor& packed, const ops::Groups& groups) {
  int64_t end = 0;
  bool any = false;
  for (const int32_t count : ints(groups.counts)) {
    end += count;
    const int64_t over = std::min<int64_t>((16 - count % 16) % 16, rows_in_use(groups) - end);
    for (int64_t i = 0; i < over; ++i) copy_rows(packed.rows(end - 1, 1), packed.rows(end + i, 1));
    any = any || over > 0;
  }
  return any;
}

/// NaN in the pad rows of [R, cols] and in the rows past the end.
inline void poison_unused_rows(const Tensor& tensor, const ops::Groups& groups) {
  const auto used = used_source_rows(groups);
  for (int64_t r = 0; r < tensor.dim(0); ++r)
    if (r >= static_cast<int64_t>(used.size()) || used[static_cast<size_t>(r)] < 0) poison(tensor.rows(r, 1));
}

}  // namespace cistron::test
