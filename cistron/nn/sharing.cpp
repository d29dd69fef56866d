#include "cistron/nn/sharing.h"

#include "cistron/core/error.h"
#include "cistron/nn/replicated_parameters.h"
#include "cistron/nn/sharded_parameters.h"

namespace cistron::nn {

Place place_of(const Parameter& parameter, const Sharing& sharing) {
  const dist::MeshShape& shape = sharing.shape;
  if (is_expert(parameter)) return {.parts = shape.dp, .part = shape.dp_index(sharing.rank)};
  return {.parts = shape.size(), .part = sharing.rank};
}

dist::Communicator& communicator_of(const Parameter& parameter, const dist::Mesh& mesh) {
  return is_expert(parameter) ? mesh.dp() : mesh.world();
}

std::vector<HeldRows> rows_of_rank(const std::vector<const Parameter*>& parameters, const Sharing& sharing) {
  std::vector<HeldRows> rows;
  for (const Parameter* parameter : parameters) {
    const auto [parts, part] = place_of(*parameter, sharing);
    const dist::Range shard = dist::shard_rows(parameter->local_shape(), parts, part);
    rows.push_back({.held = sharing.fsdp ? shard : dist::Range{0, num_rows(parameter->local_shape())}, .owned = shard});
  }
  return rows;
}

std::unique_ptr<LocalParameters> make_parameters(const std::vector<const Parameter*>& parameters, Precision precision,
                                                 const ParameterArenas& arenas, const Sharing& sharing, const dist::Mesh* mesh,
                                                 const OptimizerStorage& storage) {
  if (sharing.shape.size() == 1) return std::make_unique<LocalParameters>(parameters, precision, arenas, storage);
  CISTRON_CHECK(mesh != nullptr || arenas.parameters->device().is_meta(), "[parameters] {} ranks share them and no mesh is given",
                sharing.shape.size());
  if (sharing.fsdp) return std::make_unique<ShardedParameters>(parameters, precision, arenas, sharing, mesh, storage);
  return std::make_unique<ReplicatedParameters>(parameters, precision, arenas, sharing, mesh, storage);
}

}  // namespace cistron::nn
