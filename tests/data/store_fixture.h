#pragma once
#include <vector>

#include "cistron/core/rng.h"
#include "cistron/data/store.h"

namespace cistron::testing {

/// Random records, begin and end tokens included, of lengths in [2, max_length].
inline std::vector<std::vector<int32_t>> random_records(int64_t count, int64_t max_length, const data::Tokenizer& tokenizer,
                                                        uint64_t seed = 1) {
  std::vector<std::vector<int32_t>> records;
  for (int64_t r = 0; r < count; ++r) {
    const Rng rng(seed, static_cast<uint64_t>(r));
    std::vector<int32_t> ids(2 + rng.below(0, static_cast<uint64_t>(max_length - 1)));
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<int32_t>(4 + rng.below(i + 1, static_cast<uint64_t>(tokenizer.vocab_size() - 4)));
    ids.front() = tokenizer.special().begin;
    ids.back() = tokenizer.special().end;
    records.push_back(ids);
  }
  return records;
}

inline void write_store(const std::filesystem::path& path, const std::vector<std::vector<int32_t>>& train,
                        const std::vector<std::vector<int32_t>>& valid, const data::Tokenizer& tokenizer, bool force = false) {
  data::StoreWriter writer(path, tokenizer, force);
  for (size_t i = 0; i < train.size(); ++i) writer.add(data::Split::kTrain, "train" + std::to_string(i), train[i]);
  for (size_t i = 0; i < valid.size(); ++i) writer.add(data::Split::kValid, "valid" + std::to_string(i), valid[i]);
  writer.commit();
}

inline std::vector<int32_t> tokens_of(const data::StoreSplit& split, int64_t record) {
  std::vector<int32_t> tokens(static_cast<size_t>(split.length(record)));
  split.copy_tokens(record, 0, tokens);
  return tokens;
}

}  // namespace cistron::testing
