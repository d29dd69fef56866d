#include "cistron/data/pack.h"

#include <algorithm>

#include "cistron/core/checked.h"

namespace cistron::data {

void PackedBatch::reserve(int64_t num_tokens) {
  const auto size = static_cast<size_t>(num_tokens);
  tokens.reserve(size);
  labels.reserve(size);
  positions.reserve(size);
  loss_weight.reserve(size);
}

std::span<int32_t> PackedBatch::open_sequence(int64_t length) {
  const size_t begin = tokens.size();
  tokens.resize(begin + static_cast<size_t>(length));
  return std::span(tokens).subspan(begin);
}

void PackedBatch::close_sequence(int64_t first_scored) {
  const int64_t begin = cu_seqlens.back(), end = num_tokens();
  if (begin == end) return;
  cu_seqlens.push_back(narrow<int32_t>(end));
  for (int64_t i = begin; i < end; ++i) {
    const bool scored = i + 1 < end && i + 1 - begin >= first_scored;
    labels.push_back(scored ? tokens[static_cast<size_t>(i + 1)] : -1);
    positions.push_back(static_cast<int32_t>(i - begin));
    loss_weight.push_back(scored ? 1.0F : 0.0F);
    label_count += scored ? 1 : 0;
  }
}

PackedBatch pack(std::span<const std::vector<int32_t>> sequences) {
  PackedBatch batch;
  for (const auto& sequence : sequences) {
    std::ranges::copy(sequence, batch.open_sequence(std::ssize(sequence)).begin());
    batch.close_sequence();
  }
  return batch;
}

int64_t num_windows(int64_t length, int64_t context) { return ceil_div(length, context); }

Window training_window(int64_t length, int64_t context, int64_t index) {
  const int64_t count = num_windows(length, context);
  const int64_t size = length / count, longer = length % count;  // the first `longer` windows hold one token more
  const int64_t begin = index * size + std::min(index, longer);
  return {begin, begin + size + (index < longer ? 1 : 0)};
}

std::vector<Window> scoring_windows(int64_t length, int64_t context, int64_t overlap) {
  CISTRON_CHECK(overlap >= 1 && overlap < context, "windows of {} tokens cannot overlap by {}", context, overlap);
  std::vector<Window> windows;
  for (int64_t begin = 0, scored = 1; scored < length || begin == 0; begin = scored - overlap) {
    const int64_t end = std::min(begin + context, length);
    windows.push_back({begin, end, scored - begin});
    scored = end;
    if (end == length) break;
  }
  return windows;
}

}  // namespace cistron::data
