#include "cistron/data/split.h"

#include <algorithm>
#include <numeric>

#include "cistron/core/checked.h"

namespace cistron::data {

std::vector<int> assign_sequences(const std::vector<int32_t>& cu_seqlens, int ranks) {
  const size_t count = cu_seqlens.size() - 1;
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t s) { return cu_seqlens[s + 1] - cu_seqlens[s]; });
  std::vector<int64_t> tokens(static_cast<size_t>(ranks));
  std::vector<int> rank_of(count);
  for (const size_t s : order) {
    const auto least = std::ranges::min_element(tokens);
    *least += cu_seqlens[s + 1] - cu_seqlens[s];
    rank_of[s] = static_cast<int>(least - tokens.begin());
  }
  return rank_of;
}

PackedBatch part_of_rank(const PackedBatch& batch, int ranks, int rank) {
  const std::vector<int> rank_of = assign_sequences(batch.cu_seqlens, ranks);
  PackedBatch part;
  for (size_t s = 0; s < rank_of.size(); ++s) {
    if (rank_of[s] != rank) continue;
    const auto begin = batch.cu_seqlens[s], end = batch.cu_seqlens[s + 1];
    const auto append = [&](const auto& from, auto& to) { to.insert(to.end(), from.begin() + begin, from.begin() + end); };
    append(batch.tokens, part.tokens);
    append(batch.labels, part.labels);
    append(batch.positions, part.positions);
    append(batch.loss_weight, part.loss_weight);
    part.cu_seqlens.push_back(part.cu_seqlens.back() + end - begin);
  }
  part.label_count = std::ranges::count_if(part.labels, [](int32_t label) { return label >= 0; });
  return part;
}

// When a rank got its last sequence it had no more than the mean of the tokens then given away.
int64_t most_tokens_of_rank(int64_t tokens, int64_t longest, int ranks) {
  const int64_t last = std::min(longest, tokens);
  return std::min(tokens, (tokens - last) / ranks + last);
}

}  // namespace cistron::data
