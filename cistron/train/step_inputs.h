#pragma once
// A step's batches and numbers on their way to the device. The host writes them into page-locked memory and goes on; the device
// takes them over in the order of its queue. Two such places take turns, so at most two steps may be on their way.
#include <span>
#include <vector>

#include "cistron/core/context.h"
#include "cistron/core/step_state.h"
#include "cistron/nn/batch.h"

namespace cistron::train {

class StepInputs {
 public:
  /// Room for `batches` batches of at most `tokens` tokens, in the context's arena. On the CPU nothing is moved and nothing
  /// taken.
  StepInputs(Context& ctx, int64_t batches, int64_t tokens);

  /// Moves the batches and the host's part of `state`. Missing sequences are filled up with empty ones to a number that only
  /// grows, so that a recorded step fits the next one; `batches()` is the same until it does.
  void upload(Context& ctx, std::span<const nn::Batch> batches, StepState& state);

  /// The state's device part as at the beginning.
  void reset(Context& ctx) const;

  /// Where they are now: the device's.
  [[nodiscard]] const std::vector<nn::Batch>& batches() const { return batches_; }
  [[nodiscard]] StepState* state() const { return state_; }
  /// All of the state's bytes, as `publish` takes them.
  [[nodiscard]] Tensor state_bytes() const;
  /// What a recorded step depends on: tokens of each batch, and sequences.
  [[nodiscard]] std::vector<int64_t> shape() const;

 private:
  [[nodiscard]] nn::Batch place(const Tensor& block, size_t index, int64_t tokens) const;
  void write(const nn::Batch& from, const nn::Batch& to) const;

  int64_t tokens_ = 0, batch_bytes_ = 0, sequences_ = 1;
  Tensor device_, device_state_;
  Tensor host_[2];
  size_t turn_ = 0;
  std::vector<nn::Batch> batches_;
  StepState* state_ = nullptr;
};

}  // namespace cistron::train
