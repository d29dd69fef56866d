#include "cistron/train/engine.h"

#include <array>
#include <cstring>

#include "cistron/core/error.h"
#include "cistron/dist/overflow.h"
#include "cistron/ops/device_memory.h"
#include "cistron/ops/publish.h"

namespace cistron::train {

Engine::Engine(const EngineOptions& options, const MemoryPlan& plan, ThreadPool* pool, const dist::Mesh* mesh)
    : Engine(options, planned_arenas(plan, options), options.device, pool, mesh) {}

Engine::Engine(const EngineOptions& options, Arenas arenas, Device device, ThreadPool* pool, const dist::Mesh* mesh)
    : options_(options),
      arenas_(std::move(arenas)),
      queue_(ops::make_queue(device)),
      ctx_{.device = device,
           .planned = options.device,
           .arena = arenas_.activations,
           .pool = pool,
           .stream = queue_ == nullptr ? nullptr : queue_->stream(),
           .precision = options.precision,
           .fuse = options.fuse,
           .mesh = options.sharing.shape.size() > 1 ? mesh : nullptr,
           .headroom = options.headroom},
      decoder_(options.model, decoder_options(options)),
      parameters_(nn::make_parameters(decoder_.parameters(), options.precision, arenas_.parameters, options.sharing,
                                      device.is_meta() ? nullptr : ctx_.mesh, options.storage)),
      inputs_(ctx_, options.micro_batches, options.micro_batch_tokens),
      evaluation_inputs_(ctx_, 1, options.eval_batch_tokens) {
  ctx_.parameters = parameters_.get();
  if (!options.storage.gradients)
    parameters_->hand_over_gradients([this](const nn::LocalParameters::Entry& entry) { update_in_backward(entry); });
  take_activations();
  if (device.is_meta()) return;
  published_ = published(results(), ahead() + 1);
  if (nll_.defined()) published_nll_ = published(std::array{nll_}, 1);
}

Engine::~Engine() {
  if (queue_ == nullptr) return;
  try {
    queue_->wait();         // before the memory goes
  } catch (const Error&) {  // the device has failed, which was said where it was met
  }
}

Tensor Engine::published(std::span<const Tensor> parts, int64_t slots) const {
  const auto arena = Arena::growing("results", Device{}, ops::shared_memory(ctx_.device));
  Tensor memory = Tensor::empty(arena, {slots, ops::published_bytes(parts)}, DType::kU8);
  std::memset(memory.raw(), 0, static_cast<size_t>(memory.bytes()));
  return memory;
}

// What stays in the activations' arena.
void Engine::take_activations() {
  losses_ = model::empty_losses(ctx_, options_.model);
  if (options_.eval_batch_tokens > 0) nll_ = ctx_.empty({options_.eval_batch_tokens}, DType::kF32);
  if (!options_.storage.gradients) squares_ = ctx_.empty({std::ssize(parameters_->entries())}, DType::kF64);
}

void Engine::raise_headroom(double enough) {
  constexpr double kMore = 1.1;  // the next batch may need a little more again
  CISTRON_CHECK(queue_ == nullptr, "[engine] experts are spread over ranks on the CPU alone");
  options_.headroom = ctx_.headroom = kMore * enough;
  losses_ = {};
  nll_ = squares_ = {};
  ctx_.arena = arenas_.activations = nullptr;  // before more is taken
  ctx_.arena = arenas_.activations =
      Arena::planned("activations", options_.device, ops::device_memory(options_.device), plan(options_).activations);
  take_activations();
}

void Engine::with_room(const std::function<void()>& run) {
  while (true) {
    try {
      return run();
    } catch (const dist::Overflow& overflow) {
      parameters_->abandon_pass();
      raise_headroom(overflow.enough());
    }
  }
}

void Engine::initialise(uint64_t seed) {
  parameters_->initialise(ctx_, seed);
  restart();
}

void Engine::restart() {
  state_ = {};
  inputs_.reset(ctx_);
  std::memset(published_.raw(), 0, static_cast<size_t>(published_.bytes()));
}

MemoryPlan Engine::peak() const {
  return {.parameters = arenas_.parameters.parameters->peak(),
          .gradients = arenas_.parameters.gradients->peak(),
          .optimizer = arenas_.parameters.optimizer->peak(),
          .gathered = arenas_.parameters.gathered->peak(),
          .activations = arenas_.activations->peak()};
}

}  // namespace cistron::train
