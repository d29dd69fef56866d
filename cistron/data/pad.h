#pragma once
#include "cistron/data/pack.h"

namespace cistron::data {

/// Fills `batch` up to `tokens` with short sequences of `token` that carry no label, so that every batch has one shape and memory
/// is planned once. Packed attention keeps them apart from the others. Throws when the batch is longer.
void pad_batch(PackedBatch& batch, int64_t tokens, int32_t token);

}  // namespace cistron::data
