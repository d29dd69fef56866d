#include "cistron/dist/mesh.h"

#include "cistron/core/error.h"

namespace cistron::dist {
namespace {

MeshShape checked(const MeshShape& shape, int ranks) {
  if (shape.dp < 1 || shape.ep < 1 || shape.size() != ranks) {
    throw Error(ErrorKind::kUsage, fmt::format("a mesh of dp x ep = {} x {} over {} ranks", shape.dp, shape.ep, ranks),
                "parallel.dp, parallel.ep", "their product must be the number of ranks");
  }
  return shape;
}

}  // namespace

std::string describe(const MeshShape& shape, int64_t experts) {
  std::string text = fmt::format("mesh {} x {} (dp x ep)\n", shape.dp, shape.ep);
  for (int rank = 0; rank < shape.size(); ++rank) {
    const Range held = experts_of(experts, shape.ep, shape.ep_index(rank));
    text += fmt::format("  rank {}: dp {}, ep {}, experts {} to {} of {}\n", rank, shape.dp_index(rank), shape.ep_index(rank),
                        held.begin, held.end() - 1, experts);
  }
  return text;
}

Mesh::Mesh(Communicator& world, const MeshShape& shape)
    : world_(world),
      shape_(checked(shape, world.size())),
      dp_(world.split(shape.ep_index(world.rank()), "dp")),
      ep_(world.split(shape.dp_index(world.rank()), "ep")) {}

Mesh::Mesh(std::unique_ptr<Communicator> world, std::unique_ptr<Communicator> dp, std::unique_ptr<Communicator> ep,
           const MeshShape& shape)
    : owned_world_(std::move(world)),
      world_(*owned_world_),
      shape_(checked(shape, world_.size())),
      dp_(std::move(dp)),
      ep_(std::move(ep)) {}

}  // namespace cistron::dist
