#pragma once
// Among which ranks a parameter is shared, and how it is cut over them.
#include <memory>

#include "cistron/dist/mesh.h"
#include "cistron/nn/local_parameters.h"

namespace cistron::nn {

/// Held by one expert-parallel rank and its copies along dp only; everything else belongs to the whole world.
inline bool is_expert(const Parameter& parameter) { return parameter.count >= 0; }

/// How the ranks of a mesh share the parameters.
struct Sharing {
  dist::MeshShape shape;
  int rank = 0;
  bool fsdp = true;                   ///< shards; otherwise whole copies
  bool reshard_after_forward = true;  ///< fsdp: free a weight between forward and backward, at the price of gathering it again
};

/// The ranks that share a parameter: how many, and which of them this rank is.
struct Place {
  int parts = 1;
  int part = 0;
};
Place place_of(const Parameter& parameter, const Sharing& sharing);

/// The communicator among them.
dist::Communicator& communicator_of(const Parameter& parameter, const dist::Mesh& mesh);

/// This rank's rows of each parameter: its shard, or all of them, of which it owns its shard.
std::vector<HeldRows> rows_of_rank(const std::vector<const Parameter*>& parameters, const Sharing& sharing);

/// What fits: LocalParameters on one rank. All ranks of the mesh come here together; it is null on the meta device and on one
/// rank.
std::unique_ptr<LocalParameters> make_parameters(const std::vector<const Parameter*>& parameters, Precision precision,
                                                 const ParameterArenas& arenas, const Sharing& sharing, const dist::Mesh* mesh,
                                                 const OptimizerStorage& storage = {});

}  // namespace cistron::nn
