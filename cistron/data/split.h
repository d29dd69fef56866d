#pragma once
// A micro-batch is a quantity of the whole run; the ranks of a world share it, so that losses don't depend on how many there are.
#include <cstdint>
#include <vector>

#include "cistron/data/pack.h"

namespace cistron::data {

/// By sequence: the rank that gets it. Whole sequences, the longest first, each to the rank with the fewest tokens (Graham,
/// "Bounds on multiprocessing timing anomalies", 1969). A rank may get none.
std::vector<int> assign_sequences(const std::vector<int32_t>& cu_seqlens, int ranks);

/// The sequences of one rank, in the batch's order.
PackedBatch part_of_rank(const PackedBatch& batch, int ranks, int rank);

/// The most tokens that a rank can get of a batch of `tokens` tokens in sequences of at most `longest`.
int64_t most_tokens_of_rank(int64_t tokens, int64_t longest, int ranks);

}  // namespace cistron::data
