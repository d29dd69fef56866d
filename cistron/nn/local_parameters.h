#pragma once
// The parameters' storage on one rank: what of each it holds, with gradients and moments. Leases and sinks are views of it; ranks
// that share parameters derive from this (sharded_parameters.h, replicated_parameters.h).
#include <string>
#include <unordered_map>
#include <vector>

#include "cistron/core/context.h"
#include "cistron/dist/partition.h"
#include "cistron/ops/mxfp8.h"
#include "cistron/ops/optimizer.h"

namespace cistron::nn {

/// Where each kind of memory comes from. On the meta device they plan.
struct ParameterArenas {
  std::shared_ptr<Arena> parameters;  // masters, and working copies
  std::shared_ptr<Arena> gradients;   // null: no gradients (inference)
  std::shared_ptr<Arena> optimizer;   // the two moments; null: none
  std::shared_ptr<Arena> gathered;    // whole weights and gradients on their way, where ranks hold shards
};

/// In what the optimizer keeps its numbers. Norms and routers are f32 throughout.
struct OptimizerStorage {
  bool masters = true;         ///< f32 ones; false: none beside bf16 weights, which are updated themselves
  DType states = DType::kF32;  ///< of the moments: f32, bf16, or u8 for 8-bit codes
  bool gradients = true;       ///< false: a gradient lives only until it is handed over
};

/// Rows are counted over all dims of `Parameter::local_shape()` but the last, as dist::shard_rows does; a vector's are its
/// elements.
struct HeldRows {
  dist::Range held;   ///< what this rank stores
  dist::Range owned;  ///< what of that it answers for: counts in the norm, writes to checkpoints. Each row is owned once.
};

class LocalParameters : public ParameterAccess {
 public:
  struct Entry {
    const Parameter* parameter;
    HeldRows rows;
    Tensor master;            // what is updated, f32 or (OptimizerStorage) bf16: `local_shape()` where all of it is held, else
                              // [held rows, last dim] or [held rows]
    Tensor working;           // bf16, where the precision asks for it and the parameter allows; otherwise undefined
    MxTensor mx;              // instead of it, where the products run in MXFP8 and all of the parameter is held
    Tensor grad;              // f32
    Tensor m, v;              // as OptimizerStorage says
    Tensor m_scale, v_scale;  // of 8-bit codes, otherwise undefined
    bool has_grad = false;

    /// The number of `rows.held.begin` among the rows of the whole parameter.
    [[nodiscard]] int64_t first_row() const;
    /// The owned rows of one of the tensors above, as [rows, last dim] or [rows].
    [[nodiscard]] Tensor owned(const Tensor& tensor) const;
    /// What the optimizer takes. `weight_decay` counts where the parameter decays.
    [[nodiscard]] ops::AdamWTensor for_update(double weight_decay) const;
  };

  /// Everything is held and owned. Uninitialised values. The parameters must outlive this object.
  LocalParameters(const std::vector<const Parameter*>& parameters, Precision precision, const ParameterArenas& arenas,
                  const OptimizerStorage& storage = {});

  /// Masters drawn from a counter-based generator keyed by seed, parameter name and global index; moments zero.
  void initialise(Context& ctx, uint64_t seed);
  /// Working copies, MXFP8 too, from masters, after these were set from outside.
  void refresh_working(Context& ctx);

  /// What a pass is for: passes of one kind lease the same weights in the same order.
  enum class Pass : uint8_t { kTrain, kEvaluate };
  /// Between the two, one forward (and backward) pass over one micro-batch.
  virtual void begin_pass(Pass /*pass*/) {}
  virtual void end_pass() {}
  /// Instead of `end_pass` and `finish_gradients`, where all ranks gave the pass up at the same place: everything is as before it
  /// but for the gradients, which are void.
  virtual void abandon_pass() {}
  /// Gradients of the last step are void: the next sink of each parameter overwrites.
  void begin_step();
  /// After the last backward pass of a step: `grad` holds the sums over all ranks. Throws as `check_all_have_grads`.
  virtual void finish_gradients();
  /// Throws, naming the parameter, unless every one got a gradient since `begin_step`.
  void check_all_have_grads() const;

  /// Takes a gradient that is whole, after the last use of its weight in the pass.
  using TakeGradient = std::function<void(const Entry& entry)>;
  /// From now on gradients have memory only from the first sink to `take`, which comes before the next parameter's sink, or at
  /// `finish_gradients`. So steps are of one pass. Not where ranks share parameters.
  void hand_over_gradients(TakeGradient take) { take_ = std::move(take); }

  [[nodiscard]] std::vector<Entry>& entries() { return entries_; }
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  /// Throws where there is none.
  [[nodiscard]] Entry& find(const std::string& name);

  Tensor weights(const Parameter& parameter) override;
  MxOperand mx_weights(Context& ctx, const Parameter& parameter, MxCopy copy) override;
  GradSink grad(const Parameter& parameter) override;
  void grad_ready(const Parameter& parameter) override;

 protected:
  LocalParameters(const std::vector<const Parameter*>& parameters, const std::vector<HeldRows>& rows, Precision precision,
                  const ParameterArenas& arenas, const OptimizerStorage& storage);
  [[nodiscard]] size_t index_of(const Parameter& parameter) const;

 private:
  void hand_over_ready();

  std::shared_ptr<Arena> gradients_;
  TakeGradient take_;          // empty: gradients stay
  std::vector<Entry*> ready_;  // not taken yet
  std::vector<Entry> entries_;
  std::unordered_map<const Parameter*, size_t> index_;
  std::unordered_map<std::string_view, size_t> by_name_;  // the parameters' own names
};

/// As the quantisers take weights: [E, N, K], of one matrix [1, N, K].
Tensor as_matrices(const Tensor& weights);
/// Uninitialised MXFP8 of all of `parameter.local_shape()`.
MxTensor empty_mx(const Parameter& parameter, int64_t group, const std::shared_ptr<Arena>& arena, ops::MxCopies copies = {});

/// All rows of `shape`, counted as dist::shard_rows does, and the elements of one.
int64_t num_rows(const Shape& shape);
int64_t row_width(const Shape& shape);
/// The shape of `count` of its rows.
Shape rows_shape(const Shape& shape, int64_t count);

}  // namespace cistron::nn
