#pragma once
// Ranks in two axes. Experts are split over `ep`, everything is data-parallel over all ranks; `dp` holds the same experts again.
#include <memory>
#include <string>

#include "cistron/dist/communicator.h"
#include "cistron/dist/partition.h"

namespace cistron::dist {

/// rank = dp_index * ep + ep_index: ranks that exchange tokens are neighbours, on one host where it holds them.
struct MeshShape {
  int dp = 1;
  int ep = 1;

  [[nodiscard]] int size() const { return dp * ep; }
  [[nodiscard]] int dp_index(int rank) const { return rank / ep; }
  [[nodiscard]] int ep_index(int rank) const { return rank % ep; }
};

/// `mesh 2 x 2 (dp x ep)` and a line for each rank: its place and its experts. Throws as `experts_of`.
std::string describe(const MeshShape& shape, int64_t experts);

class Mesh {
 public:
  /// All ranks of `world`, which must outlive the mesh, come here together. Throws Error(kUsage) unless dp x ep are its ranks.
  Mesh(Communicator& world, const MeshShape& shape);

  /// Of communicators that exist already.
  Mesh(std::unique_ptr<Communicator> world, std::unique_ptr<Communicator> dp, std::unique_ptr<Communicator> ep,
       const MeshShape& shape);

  [[nodiscard]] const MeshShape& shape() const { return shape_; }
  [[nodiscard]] Communicator& world() const { return world_; }
  /// The ranks that hold the same experts; this rank's number there is its dp_index.
  [[nodiscard]] Communicator& dp() const { return *dp_; }
  /// The ranks that hold all experts together; this rank's number there is its ep_index.
  [[nodiscard]] Communicator& ep() const { return *ep_; }

 private:
  std::unique_ptr<Communicator> owned_world_;
  Communicator& world_;
  MeshShape shape_;
  std::unique_ptr<Communicator> dp_, ep_;
};

}  // namespace cistron::dist
