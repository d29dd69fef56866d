#include "cistron/nn/replicated_parameters.h"

namespace cistron::nn {

ReplicatedParameters::ReplicatedParameters(const std::vector<const Parameter*>& parameters, Precision precision,
                                           const ParameterArenas& arenas, const Sharing& sharing, const dist::Mesh* mesh,
                                           const OptimizerStorage& storage)
    : LocalParameters(parameters, rows_of_rank(parameters, sharing), precision, arenas, storage), mesh_(mesh) {}

void ReplicatedParameters::finish_gradients() {
  check_all_have_grads();
  if (mesh_ == nullptr) return;
  std::vector<dist::Pending> under_way;
  for (const Entry& entry : entries()) under_way.push_back(communicator_of(*entry.parameter, *mesh_).all_reduce(entry.grad));
  for (auto& pending : under_way) pending.wait();
}

}  // namespace cistron::nn
