#include "cistron/train/engine.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cistron/core/error.h"
#include "cistron/core/host_memory.h"
#include "cistron/ops/elementwise.h"
#include "cistron/ops/optimizer.h"

namespace cistron::train {

namespace {

std::string megabytes(int64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); }

bool has_nonfinite(const Tensor& tensor) {
  if (tensor.dtype() == DType::kF32) {
    for (const float x : tensor.span<float>())
      if (!std::isfinite(x)) return true;
  } else if (tensor.dtype() == DType::kBF16) {
    for (const bf16 x : tensor.span<bf16>())
      if (!std::isfinite(static_cast<float>(x))) return true;
  }
  return false;
}

// In double, before sizes in 64 bits overflow; a bound from below, since only absurd sizes are refused here.
void check_sizes(const EngineOptions& options) {
  constexpr double kMostBytes = 0x1p50, kMostRows = 0x1p31;  // rows are counted in 32 bits
  const auto real = [](int64_t size) { return static_cast<double>(size); };
  const auto& c = options.model;
  const double tokens = real(std::max(options.micro_batch_tokens, options.eval_batch_tokens));
  const double attention = real(c.head_dim) * (2 * real(c.heads) + 2 * real(c.kv_heads));
  const double experts = real(c.experts) * (3 * real(c.intermediate) + 1);
  const double parameters = real(c.hidden) * (real(c.layers) * (attention + experts) + real(c.vocabulary));
  const double activations =
      tokens * (real(c.layers) * (real(c.hidden) + real(c.top_k) * real(c.intermediate)) + real(c.vocabulary));
  if (tokens * real(c.top_k) >= kMostRows)
    throw Error(ErrorKind::kUsage, fmt::format("{:.0f} tokens in one piece, each to {} experts, are too many", tokens, c.top_k),
                "the batch", "stay under 2^31 in all: lower train.micro_batch_tokens or data.context (of bench: --batch, --seq)");
  if (const double bytes = 16 * parameters + 4 * activations; bytes > kMostBytes)
    throw Error(ErrorKind::kOutOfSpace, fmt::format("training needs over {:.0f} TB of memory", bytes / 1e12), "the model",
                "check its sizes in [model], and those of the batch");
}

}  // namespace

std::string MemoryPlan::report() const {
  return fmt::format("memory {}: parameters {}, gradients {}, optimizer {}, activations {}", megabytes(total()),
                     megabytes(parameters), megabytes(gradients), megabytes(optimizer), megabytes(activations));
}

Engine::Arenas Engine::meta_arenas() {
  return {.parameters = {.parameters = Arena::meta("parameters"),
                         .gradients = Arena::meta("gradients"),
                         .optimizer = Arena::meta("optimizer")},
          .activations = Arena::meta("activations")};
}

Engine::Arenas Engine::planned_arenas(const MemoryPlan& plan) {
  constexpr const char* kAdvice = "use a smaller model, lower train.micro_batch_tokens, or set train.recompute = \"layer\"";
  if (const int64_t available = available_host_memory(); plan.total() > available)
    throw Error(ErrorKind::kOutOfSpace, "not enough memory", fmt::format("{}; {} bytes are available", plan.report(), available),
                kAdvice);
  const auto arena = [](const char* name, int64_t bytes) { return Arena::planned(name, Device{}, host_memory(), bytes); };
  try {
    return {.parameters = {.parameters = arena("parameters", plan.parameters),
                           .gradients = arena("gradients", plan.gradients),
                           .optimizer = arena("optimizer", plan.optimizer)},
            .activations = arena("activations", plan.activations)};
  } catch (const Error& error) {
    throw Error(error.kind(), error.what(), plan.report(), kAdvice);
  }
}

MemoryPlan Engine::plan(const EngineOptions& options) {
  check_sizes(options);
  Engine engine(options, meta_arenas(), Device{DeviceKind::kMeta}, nullptr);
  const nn::Batch batch = nn::meta_batch(options.micro_batch_tokens, 1);
  engine.step(std::span(&batch, 1), 1.0, 0.0);
  if (options.eval_batch_tokens > 0) engine.evaluate(nn::meta_batch(options.eval_batch_tokens, 1));
  return engine.peak();
}

Engine::Engine(const EngineOptions& options, const MemoryPlan& plan, ThreadPool* pool)
    : Engine(options, planned_arenas(plan), Device{}, pool) {}

Engine::Engine(const EngineOptions& options, Arenas arenas, Device device, ThreadPool* pool)
    : options_(options),
      arenas_(std::move(arenas)),
      ctx_{.device = device, .arena = arenas_.activations, .pool = pool, .precision = options.precision},
      decoder_(options.model, options.experts),
      parameters_(std::make_unique<nn::LocalParameters>(decoder_.parameters(), options.precision, arenas_.parameters)),
      losses_(model::empty_losses(ctx_, options.model)) {
  ctx_.parameters = parameters_.get();
  if (options.eval_batch_tokens > 0) nll_ = ctx_.empty({options.eval_batch_tokens}, DType::kF32);
}

Engine::~Engine() = default;

void Engine::initialise(uint64_t seed) {
  parameters_->initialise(ctx_, seed);
  state_ = {};
}

MemoryPlan Engine::peak() const {
  return {.parameters = arenas_.parameters.parameters->peak(),
          .gradients = arenas_.parameters.gradients->peak(),
          .optimizer = arenas_.parameters.optimizer->peak(),
          .activations = arenas_.activations->peak()};
}

void Engine::set_state(double label_weight, double learning_rate) {
  const auto step = static_cast<double>(state_.step);
  state_.learning_rate = static_cast<float>(learning_rate);
  state_.bias_correction1 = static_cast<float>(1.0 - std::pow(options_.beta1, step));
  state_.bias_correction2 = static_cast<float>(1.0 - std::pow(options_.beta2, step));
  state_.loss_scale = static_cast<float>(1.0 / label_weight);
  state_.clip_norm = static_cast<float>(options_.clip);
}

void Engine::backward(std::span<const nn::Batch> micro_batches) {
  parameters_->begin_step();
  ops::zero(ctx_, {.out = losses_.cross_entropy});
  ops::zero(ctx_, {.out = losses_.router});
  const float share = 1.0F / static_cast<float>(micro_batches.size());
  for (const auto& batch : micro_batches) decoder_.train_step(ctx_, batch, state_, losses_, options_.recompute, share);
  parameters_->check_all_have_grads();
}

void Engine::update() {
  std::vector<Tensor> grads;
  std::vector<ops::AdamWTensor> tensors;
  for (const auto& entry : parameters_->entries()) {
    grads.push_back(entry.grad);
    tensors.push_back({.master = entry.master,
                       .grad = entry.grad,
                       .m = entry.m,
                       .v = entry.v,
                       .working = entry.working,
                       .weight_decay = entry.parameter->decay ? static_cast<float>(options_.weight_decay) : 0.0F});
  }
  ops::grad_norm(ctx_, {.grads = grads, .state = &state_});
  if (!ctx_.device.is_meta() && !std::isfinite(losses_.cross_entropy.span<double>()[0])) state_.finite = 0;
  ops::adamw(ctx_, {.tensors = tensors,
                    .beta1 = static_cast<float>(options_.beta1),
                    .beta2 = static_cast<float>(options_.beta2),
                    .eps = static_cast<float>(options_.eps),
                    .state = &state_});
}

StepResult Engine::result(double label_weight) const {
  if (ctx_.device.is_meta()) return {};
  const double loss = losses_.cross_entropy.span<double>()[0] / label_weight;
  return {.loss = loss,
          .router = model::summarise_router(losses_.router, options_.model.experts),
          .grad_norm = state_.grad_norm,
          .finite = state_.finite != 0 && std::isfinite(loss)};
}

StepResult Engine::step(std::span<const nn::Batch> micro_batches, double label_weight, double learning_rate) {
  ++state_.step;
  set_state(label_weight, learning_rate);
  backward(micro_batches);
  update();
  return result(label_weight);
}

std::string Engine::find_nonfinite(std::span<const nn::Batch> micro_batches, double label_weight) {
  std::string first;
  ctx_.observe = [&](std::string_view module, const Tensor& value) {
    if (first.empty() && has_nonfinite(value)) first = module;
  };
  set_state(label_weight, state_.learning_rate);
  backward(micro_batches);
  ctx_.observe = nullptr;
  for (const auto& entry : parameters_->entries())
    if (first.empty() && has_nonfinite(entry.grad)) first = "gradient of " + entry.parameter->name;
  return first;
}

Engine::Evaluation Engine::evaluate(const nn::Batch& batch) {
  ops::zero(ctx_, {.out = losses_.cross_entropy});
  ops::zero(ctx_, {.out = losses_.router});
  decoder_.evaluate(ctx_, batch, nll_, losses_);
  Evaluation sums;
  if (ctx_.device.is_meta()) return sums;
  const auto nll = nll_.span<float>();
  const auto labels = batch.labels.span<int32_t>();
  for (size_t i = 0; i < nll.size(); ++i) {
    if (labels[i] < 0) continue;
    sums.nll += nll[i];
    ++sums.tokens;
  }
  return sums;
}

}  // namespace cistron::train
