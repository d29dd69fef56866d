#pragma once
// FSDP: masters, working copies, moments and gradients lie as shards (dist::shard_rows), of experts over dp, of everything else
// over the world. A lease gathers the whole in the recipe's dtype and frees it when its last holder lets go; a sink is a whole
// fp32 array that is reduce-scattered onto the shards when it is closed. Both happen on a background thread: gathers ahead of
// use, in the order that the first pass showed. Every allocation and release is made by the calling thread at places that don't
// depend on timing, so the meta device plans them exactly.
#include <array>
#include <deque>
#include <map>
#include <memory>

#include "cistron/dist/background.h"
#include "cistron/nn/lease_order.h"
#include "cistron/nn/sharing.h"

namespace cistron::nn {

class ShardedParameters final : public LocalParameters {
 public:
  /// All ranks of the mesh come here together; it is null on the meta device.
  ShardedParameters(const std::vector<const Parameter*>& parameters, Precision precision, const ParameterArenas& arenas,
                    const Sharing& sharing, const dist::Mesh* mesh, const OptimizerStorage& storage);

  void begin_pass(Pass pass) override;
  void end_pass() override;
  void abandon_pass() override;
  void finish_gradients() override;

  Tensor weights(const Parameter& parameter) override;
  MxOperand mx_weights(Context& ctx, const Parameter& parameter, MxCopy copy) override;
  GradSink grad(const Parameter& parameter) override;
  void grad_ready(const Parameter& parameter) override;

 private:
  struct Gather {
    Tensor whole;
    int64_t job = 0;
  };
  struct Reduction {
    Tensor whole, part;  // part: where the shard is not the gradient itself, but is added to it
    int64_t job = 0;
  };

  Gather begin_gather(size_t index);
  void gather_ahead(size_t place);
  Tensor wait_for(Gather gather);
  void finish_reductions(size_t left);
  [[nodiscard]] dist::Communicator& communicator(size_t index) const;
  /// Shared with nobody: nothing is gathered or reduced.
  [[nodiscard]] bool is_alone(size_t index) const { return rows_[index].size() == 1; }
  [[nodiscard]] bool is_meta() const { return background_ == nullptr; }

  bool reshard_after_forward_;
  std::shared_ptr<Arena> gathered_;
  std::vector<std::vector<int64_t>> rows_;          // by parameter: the rows of each of its ranks
  std::unique_ptr<dist::Communicator> world_, dp_;  // the background thread's own
  std::array<LeaseOrder, 2> orders_;                // by Pass
  LeaseOrder* order_ = nullptr;                     // of the pass under way
  std::map<size_t, Gather> ahead_;                  // by place in the pass
  std::map<size_t, Tensor> kept_;                   // by parameter, until its last lease in the pass
  std::vector<Tensor> open_;                        // by parameter: the sink that is being filled
  std::deque<Reduction> reductions_;                // oldest first
  std::unique_ptr<dist::Background> background_;    // null on meta; the last member, so that it ends first
};

}  // namespace cistron::nn
