#pragma once
// Engines on several ranks that are threads, fed with parts of the same global batches.
#include <functional>
#include <memory>
#include <ostream>

#include "cistron/data/split.h"
#include "cistron/dist/mesh.h"
#include "cistron/dist/threads.h"
#include "tests/train/support.h"

namespace cistron::train::test {

struct RanksOptions {
  dist::MeshShape mesh;
  bool fsdp = true;
  bool reshard_after_forward = true;
  int64_t micro_batches = 2;
  int64_t longest = 40;  ///< of the batches' sequences
};

inline void PrintTo(const RanksOptions& o, std::ostream* out) { *out << o.mesh.dp << " x " << o.mesh.ep; }

/// `engine` as one rank of a mesh runs it: its batches are what is left of global ones.
inline EngineOptions for_rank(EngineOptions engine, const RanksOptions& ranks, int rank) {
  const auto share = [&](int64_t tokens) { return data::most_tokens_of_rank(tokens, ranks.longest, ranks.mesh.size()); };
  engine.micro_batch_tokens = share(engine.micro_batch_tokens);
  engine.eval_batch_tokens = share(engine.eval_batch_tokens);
  engine.micro_batches = ranks.micro_batches;
  engine.sharing = {.shape = ranks.mesh, .rank = rank, .fsdp = ranks.fsdp, .reshard_after_forward = ranks.reshard_after_forward};
  return engine;
}

/// One rank's part of global batches, and the views that an engine takes.
class RankBatches {
 public:
  RankBatches(const std::vector<data::PackedBatch>& global, int ranks, int rank) {
    for (const auto& batch : global) {
      label_weight_ += static_cast<double>(batch.label_count);
      parts_.push_back(data::part_of_rank(batch, ranks, rank));
    }
    for (const auto& part : parts_) views_.push_back(nn::view_of(part));
  }
  [[nodiscard]] std::span<const nn::Batch> views() const { return views_; }
  [[nodiscard]] double label_weight() const { return label_weight_; }

 private:
  std::vector<data::PackedBatch> parts_;
  std::vector<nn::Batch> views_;
  double label_weight_ = 0.0;
};

/// The global batches of one step.
inline std::vector<data::PackedBatch> step_batches(int64_t tokens, int64_t micro_batches, int64_t step) {
  std::vector<data::PackedBatch> batches;
  for (int64_t j = 0; j < micro_batches; ++j) batches.push_back(random_batch(tokens, static_cast<uint64_t>(1000 * step + j)));
  return batches;
}

/// An engine on each rank; `body` runs on all of them at once. One rank needs no thread.
using RankBody = std::function<void(Engine& engine, dist::Communicator& world)>;
inline void run_engines(const EngineOptions& options, const RanksOptions& ranks, const RankBody& body) {
  dist::run_ranks(ranks.mesh.size(),
                  [&](dist::Communicator& world) {
                    const EngineOptions mine = for_rank(options, ranks, world.rank());
                    const dist::Mesh mesh(world, ranks.mesh);
                    Engine engine(mine, Engine::plan(mine), nullptr, &mesh);
                    engine.initialise(3);
                    body(engine, world);
                  },
                  {std::chrono::seconds(60)});
}

}  // namespace cistron::train::test
