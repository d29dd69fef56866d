#include "cistron/data/pad.h"

#include <algorithm>

#include "cistron/core/error.h"

namespace cistron::data {

void pad_batch(PackedBatch& batch, int64_t tokens, int32_t token) {
  constexpr int64_t kLength = 64;  // attention costs the square of it
  CISTRON_CHECK(batch.num_tokens() <= tokens, "[pad] {} tokens are more than {}", batch.num_tokens(), tokens);
  while (batch.num_tokens() < tokens) {
    const int64_t length = std::min(kLength, tokens - batch.num_tokens());
    std::ranges::fill(batch.open_sequence(length), token);
    batch.close_sequence(/*first_scored=*/length);
  }
}

}  // namespace cistron::data
