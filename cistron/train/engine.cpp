#include "cistron/train/engine.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cistron/core/error.h"
#include "cistron/core/host_memory.h"
#include "cistron/dist/check_same.h"
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

// The least of the ranks' texts that are not empty, with the rank that gave it.
std::string first_of_ranks(dist::Communicator& world, const std::string& mine) {
  std::string first;
  const std::vector<std::string> all = dist::gather_texts(world, mine);
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (const std::string text = fmt::format("{} on rank {}", all[rank], rank);
        !all[rank].empty() && (first.empty() || text < first))
      first = text;
  return first;
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
  const std::string on_the_way = gathered > 0 ? ", gathered " + megabytes(gathered) : "";
  return fmt::format("memory {}: parameters {}, gradients {}, optimizer {}{}, activations {}", megabytes(total()),
                     megabytes(parameters), megabytes(gradients), megabytes(optimizer), on_the_way, megabytes(activations));
}

Engine::Arenas Engine::meta_arenas() {
  return {.parameters = {.parameters = Arena::meta("parameters"),
                         .gradients = Arena::meta("gradients"),
                         .optimizer = Arena::meta("optimizer"),
                         .gathered = Arena::meta("gathered")},
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
                           .optimizer = arena("optimizer", plan.optimizer),
                           .gathered = arena("gathered", plan.gathered)},
            .activations = arena("activations", plan.activations)};
  } catch (const Error& error) {
    throw Error(error.kind(), error.what(), plan.report(), kAdvice);
  }
}

MemoryPlan Engine::plan(const EngineOptions& options) {
  check_sizes(options);
  Engine engine(options, meta_arenas(), Device{DeviceKind::kMeta}, nullptr, nullptr);
  const std::vector<nn::Batch> batches(static_cast<size_t>(std::min<int64_t>(options.micro_batches, 2)),
                                       nn::meta_batch(options.micro_batch_tokens, 1));
  for (int pass = 0; pass < 2; ++pass) {  // the first shows the order in which weights are gathered, the second gathers ahead
    engine.step(batches, 1.0, 0.0);
    if (options.eval_batch_tokens > 0) engine.evaluate(nn::meta_batch(options.eval_batch_tokens, 1));
  }
  return engine.peak();
}

Engine::Engine(const EngineOptions& options, const MemoryPlan& plan, ThreadPool* pool, const dist::Mesh* mesh)
    : Engine(options, planned_arenas(plan), Device{}, pool, mesh) {}

Engine::Engine(const EngineOptions& options, Arenas arenas, Device device, ThreadPool* pool, const dist::Mesh* mesh)
    : options_(options),
      arenas_(std::move(arenas)),
      mesh_(options.sharing.shape.size() > 1 ? mesh : nullptr),
      ctx_{.device = device, .arena = arenas_.activations, .pool = pool, .precision = options.precision},
      decoder_(options.model, options.experts),
      parameters_(nn::make_parameters(decoder_.parameters(), options.precision, arenas_.parameters, options.sharing, mesh_)),
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
          .gathered = arenas_.parameters.gathered->peak(),
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
  for (const auto& batch : micro_batches) {
    parameters_->begin_pass(nn::LocalParameters::Pass::kTrain);
    decoder_.train_step(ctx_, batch, state_, losses_, options_.recompute, share);
    parameters_->end_pass();
  }
  parameters_->finish_gradients();
  sum_over_ranks(losses_.cross_entropy);
}

void Engine::sum_over_ranks(const Tensor& tensor) const {
  if (mesh_ != nullptr) mesh_->world().all_reduce(tensor).wait();
}

void Engine::gradient_norm() {
  std::vector<Tensor> grads;
  for (const auto& entry : parameters_->entries()) grads.push_back(entry.owned(entry.grad));
  if (mesh_ == nullptr) return ops::grad_norm(ctx_, {.grads = grads, .state = &state_});
  double squares = 0.0;
  const Tensor sum = Tensor::view(std::span(&squares, 1));
  ops::sum_of_squares(ctx_, {.grads = grads, .out = sum});
  sum_over_ranks(sum);
  ops::norm_of_squares(ctx_, {.squares = sum, .state = &state_});
}

void Engine::update() {
  std::vector<ops::AdamWTensor> tensors;
  for (const auto& entry : parameters_->entries()) {
    tensors.push_back({.master = entry.master,
                       .grad = entry.grad,
                       .m = entry.m,
                       .v = entry.v,
                       .working = entry.working,
                       .weight_decay = entry.parameter->decay ? static_cast<float>(options_.weight_decay) : 0.0F});
  }
  gradient_norm();
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
  int64_t seen = 0;
  const auto look = [&](std::string_view module, const Tensor& value) {
    ++seen;
    if (first.empty() && has_nonfinite(value)) first = fmt::format("{:012} {}", seen, module);  // sorted by place
  };
  ctx_.observe = look;
  set_state(label_weight, state_.learning_rate);
  backward(micro_batches);
  ctx_.observe = nullptr;
  for (const auto& entry : parameters_->entries()) look("gradient of " + entry.parameter->name, entry.grad);
  if (mesh_ != nullptr) first = first_of_ranks(mesh_->world(), first);
  return first.empty() ? first : first.substr(first.find(' ') + 1);
}

Engine::Evaluation Engine::evaluate(const nn::Batch& batch) {
  ops::zero(ctx_, {.out = losses_.cross_entropy});
  ops::zero(ctx_, {.out = losses_.router});
  const Tensor losses = nll_.rows(0, batch.num_tokens());
  parameters_->begin_pass(nn::LocalParameters::Pass::kEvaluate);
  decoder_.evaluate(ctx_, batch, losses, losses_);
  parameters_->end_pass();
  Evaluation sums;
  if (ctx_.device.is_meta()) return sums;
  const auto nll = losses.span<float>();
  const auto labels = batch.labels.span<int32_t>();
  for (size_t i = 0; i < nll.size(); ++i) {
    if (labels[i] < 0) continue;
    sums.nll += nll[i];
    ++sums.tokens;
  }
  sum_over_ranks(Tensor::view(std::span(&sums.nll, 1)));
  sum_over_ranks(Tensor::view(std::span(&sums.tokens, 1)));
  return sums;
}

}  // namespace cistron::train
