#include <array>
#include <cmath>
#include <cstring>

#include "cistron/core/error.h"
#include "cistron/ops/elementwise.h"
#include "cistron/ops/optimizer.h"
#include "cistron/ops/publish.h"
#include "cistron/ops/step_guard.h"
#include "cistron/train/engine.h"

namespace cistron::train {

void Engine::set_state(double label_weight, double learning_rate) {
  const auto step = static_cast<double>(state_.step);
  state_.learning_rate = static_cast<float>(learning_rate);
  state_.bias_correction1 = static_cast<float>(1.0 - std::pow(options_.beta1, step));
  state_.bias_correction2 = static_cast<float>(1.0 - std::pow(options_.beta2, step));
  state_.loss_scale = static_cast<float>(1.0 / label_weight);
  state_.clip_norm = static_cast<float>(options_.clip);
}

void Engine::backward() {
  parameters_->begin_step();
  taken_ = 0;
  ops::zero(ctx_, {.out = losses_.cross_entropy});
  ops::zero(ctx_, {.out = losses_.router});
  const auto& batches = inputs_.batches();
  const float share = 1.0F / static_cast<float>(batches.size());
  for (const auto& batch : batches) {
    parameters_->begin_pass(nn::LocalParameters::Pass::kTrain);
    decoder_.train_step(ctx_, batch, *inputs_.state(), losses_, options_.recompute, share);
    parameters_->end_pass();
  }
  parameters_->finish_gradients();
  sum_over_ranks(losses_.cross_entropy);
}

void Engine::sum_over_ranks(const Tensor& tensor) const {
  if (ctx_.mesh != nullptr && !ctx_.device.is_meta()) ctx_.mesh->world().all_reduce(tensor).wait();
}

void Engine::gradient_norm() {
  std::vector<Tensor> grads;
  for (const auto& entry : parameters_->entries()) grads.push_back(entry.owned(entry.grad));
  if (ctx_.mesh == nullptr) return ops::grad_norm(ctx_, {.grads = grads, .state = inputs_.state()});
  double squares = 0.0;
  const Tensor sum = Tensor::view(std::span(&squares, 1));
  ops::sum_of_squares(ctx_, {.grads = grads, .out = sum});
  sum_over_ranks(sum);
  ops::norm_of_squares(ctx_, {.squares = sum, .state = inputs_.state()});
}

void Engine::guarded_update(std::span<const ops::AdamWTensor> tensors) {
  ops::step_guard(ctx_, {.loss = losses_.cross_entropy, .state = inputs_.state()});
  ops::adamw(ctx_, {.tensors = tensors,
                    .beta1 = static_cast<float>(options_.beta1),
                    .beta2 = static_cast<float>(options_.beta2),
                    .eps = static_cast<float>(options_.eps),
                    .state = inputs_.state()});
}

// The norm so far, which after the last is the norm of all; once it is not finite nothing more is updated.
void Engine::update_in_backward(const nn::LocalParameters::Entry& entry) {
  ctx_.report("gradient of " + entry.parameter->name, entry.grad);
  const std::array grads{entry.grad};
  ops::sum_of_squares(ctx_, {.grads = grads, .out = squares_.rows(taken_++, 1)});
  ops::norm_of_squares(ctx_, {.squares = squares_.rows(0, taken_), .state = inputs_.state()});
  guarded_update(std::array{entry.for_update(options_.weight_decay)});
}

void Engine::update() {
  if (!options_.storage.gradients) return;  // all is done
  std::vector<ops::AdamWTensor> tensors;
  for (const auto& entry : parameters_->entries()) tensors.push_back(entry.for_update(options_.weight_decay));
  gradient_norm();
  guarded_update(tensors);
}

std::vector<Tensor> Engine::results() const { return {losses_.cross_entropy, losses_.router, inputs_.state_bytes()}; }

void Engine::run_step() {
  with_room([&] { backward(); });
  update();
  const auto parts = results();
  ops::publish(ctx_, {.parts = parts, .number = &inputs_.state()->step, .out = published_});
}

void Engine::queue_step(std::span<const nn::Batch> micro_batches, double label_weight, double learning_rate) {
  CISTRON_CHECK(under_way() <= ahead(), "[step] {} steps are under way", under_way());
  ++state_.step;
  set_state(label_weight, learning_rate);
  inputs_.upload(ctx_, micro_batches, state_);
  launch();
  under_way_.push_back({.step = state_.step, .label_weight = label_weight});
}

void Engine::launch() {
  if (queue_ == nullptr || !options_.record) return run_step();
  if (recorded_ == nullptr && recorded_shape_ == inputs_.shape()) recorded_ = queue_->record([this] { run_step(); });
  if (recorded_ != nullptr && recorded_shape_ == inputs_.shape()) return recorded_->replay();
  if (recorded_ != nullptr) queue_->wait();  // it may be running
  recorded_ = nullptr;
  recorded_shape_ = inputs_.shape();
  run_step();  // one by one the first time: kernels are loaded and libraries make up their minds
}

StepResult Engine::next_result() {
  CISTRON_CHECK(!under_way_.empty(), "[step] no step is under way");
  const UnderWay step = under_way_.front();
  under_way_.pop_front();
  if (ctx_.device.is_meta()) return {};
  const auto bytes = ops::await_published(queue_.get(), published_, step.step);
  double sum = 0.0;
  std::memcpy(&sum, bytes.data(), sizeof sum);
  std::vector<double> router(static_cast<size_t>(losses_.router.numel()));
  std::memcpy(router.data(), bytes.data() + sizeof sum, router.size() * sizeof(double));
  StepState state;
  std::memcpy(&state, bytes.data() + sizeof sum + router.size() * sizeof(double), sizeof state);
  const double loss = sum / step.label_weight;
  return {.loss = loss,
          .router = model::summarise_router(Tensor::view(std::span(router)), options_.model.experts),
          .grad_norm = state.grad_norm,
          .finite = state.finite != 0 && std::isfinite(loss)};
}

StepResult Engine::step(std::span<const nn::Batch> micro_batches, double label_weight, double learning_rate) {
  queue_step(micro_batches, label_weight, learning_rate);
  return next_result();
}

}  // namespace cistron::train
