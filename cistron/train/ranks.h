#pragma once
// The ranks that train one model together, as the trainer needs them: that they are alike, their mesh, and what they agree on.
#include <string>

#include "cistron/dist/mesh.h"
#include "cistron/train/config.h"

namespace cistron::train {

/// parallel.dp and parallel.ep over `ranks` ranks; dp = 0 takes what is left. Throws Error(kUsage).
dist::MeshShape mesh_shape(const RunConfig& config, int ranks);

/// A bound for each wait, from parallel.timeout_seconds.
dist::Options communicator_options(const RunConfig& config);

class Ranks {
 public:
  /// All ranks of `world`, which must outlive this, come here together. Throws Error(kUsage), naming the ranks, where the build,
  /// the configuration, the seed or the data are not the same on all.
  Ranks(dist::Communicator& world, const RunConfig& config, uint64_t store_fingerprint);

  [[nodiscard]] dist::Communicator& world() const { return world_; }
  [[nodiscard]] const dist::Mesh& mesh() const { return mesh_; }
  [[nodiscard]] int size() const { return world_.size(); }
  [[nodiscard]] int rank() const { return world_.rank(); }
  [[nodiscard]] bool is_first() const { return rank() == 0; }

  /// The largest of the ranks' numbers, so that a signal that only some have seen is heeded by all after the same step.
  [[nodiscard]] int largest(int number) const;
  /// `mine` of each, a line a rank: "  rank 0: ...".
  [[nodiscard]] std::string lines(const std::string& mine) const;
  /// Throws Error(kOutOfSpace), on all ranks of a machine alike, where together they need more bytes than it has. Each rank gives
  /// its own need; none may take its memory before.
  void check_memory(int64_t needed) const;

 private:
  dist::Communicator& world_;
  dist::Mesh mesh_;
};

/// Threads for this rank: the cores that it may use, or `threads` of them, divided by the ranks of its machine that may use the
/// same ones (a launcher may have bound each to its own). All ranks call it.
int threads_of_rank(dist::Communicator& world, int64_t threads);

}  // namespace cistron::train
