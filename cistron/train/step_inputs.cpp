#include "cistron/train/step_inputs.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "cistron/core/checked.h"
#include "cistron/core/error.h"
#include "cistron/ops/copy.h"
#include "cistron/ops/device_memory.h"
#include "cistron/ops/elementwise.h"

namespace cistron::train {

namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kHostPart = offsetof(StepState, grad_norm);
constexpr auto kStateBytes = static_cast<int64_t>(sizeof(StepState));

// The state's place, and in each batch: tokens, positions, labels, loss weights, and cu_seqlens of one-token sequences at worst.
int64_t array_bytes(int64_t size) { return round_up(4 * size, kAlign); }

Tensor bytes_at(const Tensor& block, int64_t offset, int64_t size) { return block.rows(offset, size); }

void copy_bytes(const Tensor& from, const Tensor& to) { std::memcpy(to.raw(), from.raw(), static_cast<size_t>(from.bytes())); }

}  // namespace

StepInputs::StepInputs(Context& ctx, int64_t batches, int64_t tokens) : tokens_(tokens) {
  if (!ctx.target().is_cuda()) return;
  batch_bytes_ = 4 * array_bytes(tokens) + array_bytes(tokens + 1);
  const Shape block{kAlign + batches * batch_bytes_};
  device_ = ctx.empty(block, DType::kU8);
  device_state_ = bytes_at(device_, 0, kStateBytes);
  state_ = static_cast<StepState*>(device_.raw());
  if (ctx.device.is_meta()) return;
  reset(ctx);
  const auto arena = Arena::growing("inputs", Device{}, ops::shared_memory(ctx.device));
  for (Tensor& host : host_) host = Tensor::empty(arena, block, DType::kU8);
}

void StepInputs::reset(Context& ctx) const {
  if (device_state_.defined()) ops::zero(ctx, {.out = device_state_});
}

nn::Batch StepInputs::place(const Tensor& block, size_t index, int64_t tokens) const {
  auto* at = static_cast<std::byte*>(block.raw()) + kAlign + static_cast<int64_t>(index) * batch_bytes_;
  const auto array = [&](int64_t size, int64_t room, DType dtype) {
    const Tensor tensor = Tensor::view(at, {size}, dtype, block.device());
    at += array_bytes(room);
    return tensor;
  };
  nn::Batch batch;
  batch.tokens = array(tokens, tokens_, DType::kI32);
  batch.positions = array(tokens, tokens_, DType::kI32);
  batch.labels = array(tokens, tokens_, DType::kI32);
  batch.loss_weight = array(tokens, tokens_, DType::kF32);
  batch.cu_seqlens = array(sequences_ + 1, tokens_ + 1, DType::kI32);
  return batch;
}

void StepInputs::write(const nn::Batch& from, const nn::Batch& to) const {
  copy_bytes(from.tokens, to.tokens);
  copy_bytes(from.positions, to.positions);
  copy_bytes(from.labels, to.labels);
  copy_bytes(from.loss_weight, to.loss_weight);
  copy_bytes(from.cu_seqlens, to.cu_seqlens);
  const auto starts = to.cu_seqlens.span<int32_t>();
  const auto end = static_cast<int32_t>(from.num_tokens());
  std::fill(starts.begin() + from.cu_seqlens.dim(0), starts.end(), end);
}

void StepInputs::upload(Context& ctx, std::span<const nn::Batch> batches, StepState& state) {
  if (!ctx.device.is_cuda()) {
    batches_.assign(batches.begin(), batches.end());
    if (state_ == nullptr) state_ = &state;
    return;
  }
  const auto used = static_cast<int64_t>(batches.size()) * batch_bytes_;
  CISTRON_CHECK(kAlign + used <= device_.bytes(), "[step] {} batches are more than were planned for", batches.size());
  int64_t most = 1;
  for (const auto& batch : batches) most = std::max(most, batch.cu_seqlens.dim(0) - 1);
  sequences_ = std::min(tokens_, std::max(sequences_, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(most)))));
  const Tensor& host = host_[turn_ ^= 1];
  std::memcpy(host.raw(), &state, static_cast<size_t>(kHostPart));
  batches_.clear();
  for (size_t i = 0; i < batches.size(); ++i) {
    const int64_t tokens = batches[i].num_tokens();
    CISTRON_CHECK(!batches[i].choices.defined(), "[step] recorded choices of experts are taken on the CPU alone");
    CISTRON_CHECK(tokens <= tokens_, "[step] a batch of {} tokens, room for {}", tokens, tokens_);
    CISTRON_CHECK(batches[i].cu_seqlens.dim(0) <= sequences_ + 1, "[step] {} sequences in a batch, room for {}",
                  batches[i].cu_seqlens.dim(0) - 1, sequences_);
    write(batches[i], place(host, i, tokens));
    batches_.push_back(place(device_, i, tokens));
  }
  ops::copy(ctx, {.x = bytes_at(host, 0, kHostPart), .out = bytes_at(device_, 0, kHostPart)});
  ops::copy(ctx, {.x = bytes_at(host, kAlign, used), .out = bytes_at(device_, kAlign, used)});
}

Tensor StepInputs::state_bytes() const {
  return device_state_.defined() ? device_state_ : Tensor::view(state_, {kStateBytes}, DType::kU8);
}

std::vector<int64_t> StepInputs::shape() const {
  std::vector<int64_t> shape{sequences_};
  for (const auto& batch : batches_) shape.push_back(batch.num_tokens());
  return shape;
}

}  // namespace cistron::train
