#pragma once
// What the tests of training share: a tiny model, random batches, a store of random proteins.
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cistron/core/error.h"
#include "cistron/core/rng.h"
#include "cistron/data/pack.h"
#include "cistron/data/store.h"
#include "cistron/train/config.h"
#include "cistron/train/engine.h"

namespace cistron::train::test {

inline model::ModelConfig tiny_model() {
  model::ModelConfig config{.layers = 2,
                            .hidden = 32,
                            .intermediate = 24,
                            .heads = 4,
                            .kv_heads = 2,
                            .experts = 4,
                            .top_k = 2,
                            .context = 64,
                            .vocabulary = 33,
                            .aux_loss = 0.01,
                            .z_loss = 1e-3};
  config.validate();
  return config;
}

inline EngineOptions tiny_engine(Precision precision = Precision::kF32) {
  return {.model = tiny_model(), .precision = precision, .micro_batch_tokens = 96, .eval_batch_tokens = 128};
}

/// Of that model in fp32 on a store, in micro-batches of the tiny engine's size; not resolved.
inline RunConfig tiny_run(const std::filesystem::path& store) {
  RunConfig config;
  config.model = tiny_model();
  config.data.store = store.string();
  config.recipe = "fp32";
  config.train.batch_tokens = 192;
  config.train.micro_batch_tokens = 96;
  config.train.checkpoint_every = 4;
  return config;
}

/// What planning such an engine refuses by; empty where it does not.
inline std::string refusal_of(const EngineOptions& options) {
  try {
    Engine::plan(options);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kUsage ? error.what() : "not an error of usage";
  }
  return "";
}

/// `tokens` tokens in random sequences of 1 to 40.
inline data::PackedBatch random_batch(int64_t tokens, uint64_t seed) {
  const Rng rng(seed, 7);
  data::PackedBatch batch;
  uint64_t i = 0;
  while (batch.num_tokens() < tokens) {
    const int64_t left = tokens - batch.num_tokens();
    const auto length = std::min<int64_t>(left, 1 + static_cast<int64_t>(rng.below(i++, 40)));
    for (int32_t& token : batch.open_sequence(length)) token = static_cast<int32_t>(rng.below(i++, 33));
    batch.close_sequence();
  }
  return batch;
}

/// 60 random proteins, ten of them for validation.
inline void write_protein_store(const std::filesystem::path& path) {
  const auto tokenizer = data::make_tokenizer("esm2");
  data::StoreWriter writer(path, *tokenizer);
  const Rng rng(11, 0);
  uint64_t i = 0;
  for (int record = 0; record < 60; ++record) {
    std::vector<int32_t> ids{0};
    const auto length = 3 + rng.below(i++, 90);
    for (uint64_t r = 0; r < length; ++r) ids.push_back(4 + static_cast<int32_t>(rng.below(i++, 20)));
    ids.push_back(2);
    writer.add(record % 6 == 0 ? data::Split::kValid : data::Split::kTrain, fmt::format("r{}", record), ids);
  }
  writer.commit();
}

/// A directory that is gone when the test is over.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "cistron-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace cistron::train::test
