#pragma once
#include "cistron/nn/sharing.h"

namespace cistron::nn {

/// Whole copies on every rank that needs a parameter (parallel.fsdp = false): experts on the ranks that hold them, everything
/// else on all. Gradients are added up over the ranks at the end of a step.
class ReplicatedParameters final : public LocalParameters {
 public:
  /// `mesh` is null on the meta device.
  ReplicatedParameters(const std::vector<const Parameter*>& parameters, Precision precision, const ParameterArenas& arenas,
                       const Sharing& sharing, const dist::Mesh* mesh, const OptimizerStorage& storage);
  void finish_gradients() override;

 private:
  const dist::Mesh* mesh_;
};

}  // namespace cistron::nn
