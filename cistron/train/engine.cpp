#include "cistron/train/engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "cistron/core/error.h"
#include "cistron/dist/check_same.h"
#include "cistron/dist/meta.h"
#include "cistron/dist/overflow.h"
#include "cistron/nn/mx_report.h"
#include "cistron/ops/copy.h"
#include "cistron/ops/device_memory.h"
#include "cistron/ops/elementwise.h"
#include "cistron/ops/optimizer.h"
#include "cistron/ops/publish.h"
#include "cistron/ops/step_guard.h"
#include "cistron/train/what_would_fit.h"

namespace cistron::train {

namespace {

std::string megabytes(int64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); }

template <class T>
bool has_nonfinite(std::span<const std::byte> bytes) {
  const std::span values(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
  return std::ranges::any_of(values, [](T x) { return !std::isfinite(static_cast<float>(x)); });
}

bool has_nonfinite(Context& ctx, const Tensor& tensor) {
  bool found = false;
  if (tensor.dtype() != DType::kF32 && tensor.dtype() != DType::kBF16) return found;
  ops::read_pieces(ctx, tensor, [&](std::span<const std::byte> piece) {
    found = found || (tensor.dtype() == DType::kF32 ? has_nonfinite<float>(piece) : has_nonfinite<bf16>(piece));
  });
  return found;
}

std::shared_ptr<Arena> planned_arena(const char* name, const Device& device, int64_t bytes) {
  return Arena::planned(name, device, ops::device_memory(device), bytes);
}

// Whoever looks at a pass's values, until it ends, however it does.
class Observed {
 public:
  template <class Look>
  Observed(Context& ctx, const Look& look) : ctx_(ctx) {
    ctx_.observe = look;
  }
  ~Observed() { ctx_.observe = nullptr; }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;

 private:
  Context& ctx_;
};

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

void check_update(const EngineOptions& options) {
  if (!options.storage.masters && options.precision != Precision::kBF16)
    throw Error(ErrorKind::kUsage, "only bf16 weights are their own masters", "optimizer.masters",
                "leave \"none\" out, or set precision.recipe = \"bf16\"");
  if (options.storage.gradients) return;
  const auto refuse = [](const char* what, const char* advice) {
    throw Error(ErrorKind::kUsage, what, "optimizer.update_in_backward", advice);
  };
  if (options.clip > 0)
    refuse("clipping needs the norm of all gradients before any is used", "set optimizer.clip = 0, or leave it out");
  if (options.micro_batches > 1)
    refuse("gradients of several micro-batches must be kept",
           "set train.micro_batch_tokens = train.batch_tokens, or leave it out");
  if (options.sharing.shape.size() > 1) refuse("ranks add their gradients up first", "leave it out, or use one rank");
}

}  // namespace

model::DecoderOptions decoder_options(const EngineOptions& options) {
  return {.experts = options.experts, .mesh = options.sharing.shape, .rank = options.sharing.rank, .mxfp8 = options.mxfp8};
}

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

Engine::Arenas Engine::planned_arenas(const MemoryPlan& plan, const EngineOptions& options) {
  const Device& device = options.device;
  const int64_t available = ops::available_memory(device);
  if (plan.total() > available)
    throw Error(ErrorKind::kOutOfSpace, "not enough memory",
                fmt::format("{}; {} bytes are available on {}", plan.report(), available, to_string(device)),
                what_would_fit(options, available));
  const auto arena = [&](const char* name, int64_t bytes) { return planned_arena(name, device, bytes); };
  try {
    return {.parameters = {.parameters = arena("parameters", plan.parameters),
                           .gradients = arena("gradients", plan.gradients),
                           .optimizer = arena("optimizer", plan.optimizer),
                           .gathered = arena("gathered", plan.gathered)},
            .activations = arena("activations", plan.activations)};
  } catch (const Error& error) {
    throw Error(error.kind(), error.what(), plan.report(), "something else took memory meanwhile: try again");
  }
}

MemoryPlan Engine::plan(const EngineOptions& options) {
  check_sizes(options);
  check_update(options);
  const auto mesh = dist::meta_mesh(options.sharing.shape, options.sharing.rank);
  Engine engine(options, meta_arenas(), Device{DeviceKind::kMeta}, nullptr, mesh.get());
  if (options.require_fused) engine.decoder_.require_fused(engine.ctx_);
  const auto batch = [](int64_t tokens) { return nn::meta_batch(tokens, tokens); };  // of one-token sequences at worst
  const std::vector<nn::Batch> batches(static_cast<size_t>(std::min<int64_t>(options.micro_batches, 2)),
                                       batch(options.micro_batch_tokens));
  for (int pass = 0; pass < 2; ++pass) {  // the first shows the order in which weights are gathered, the second gathers ahead
    engine.step(batches, 1.0, 0.0);
    if (options.eval_batch_tokens > 0) engine.evaluate(batch(options.eval_batch_tokens));
  }
  return engine.peak();
}

std::string Engine::fusions(const EngineOptions& options) {
  check_sizes(options);
  const model::Decoder decoder(options.model, decoder_options(options));
  return decoder.plan(
      {.device = Device{DeviceKind::kMeta}, .planned = options.device, .precision = options.precision, .fuse = options.fuse});
}

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
  ctx_.arena = arenas_.activations = planned_arena("activations", options_.device, plan(options_).activations);
  take_activations();
}

template <class Run>
void Engine::with_room(const Run& run) {
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

std::vector<ops::TimedOperation> Engine::profile(std::span<const nn::Batch> micro_batches, double label_weight) {
  const auto timer = ops::make_timer(ctx_);
  ++state_.step;
  set_state(label_weight, state_.learning_rate);
  inputs_.upload(ctx_, micro_batches, state_);
  constexpr double kAheadMilliseconds = 50;  // longer than the host needs to queue a step
  timer->start(kAheadMilliseconds);
  ctx_.timer = timer.get();
  run_step();
  ctx_.timer = nullptr;
  return timer->finish();
}

std::string Engine::find_nonfinite(std::span<const nn::Batch> micro_batches, double label_weight) {
  std::string first;
  int64_t seen = 0;
  const auto look = [&](std::string_view module, const Tensor& value) {
    ++seen;
    if (first.empty() && has_nonfinite(ctx_, value)) first = fmt::format("{:012} {}", seen, module);  // sorted by place
  };
  set_state(label_weight, state_.learning_rate);
  inputs_.upload(ctx_, micro_batches, state_);
  with_room([&] {
    first.clear();
    seen = 0;
    const Observed observed(ctx_, look);
    backward();
  });
  for (const auto& entry : parameters_->entries())
    if (entry.grad.defined()) look("gradient of " + entry.parameter->name, entry.grad);
  if (ctx_.mesh != nullptr) first = first_of_ranks(ctx_.mesh->world(), first);
  return first.empty() ? first : first.substr(first.find(' ') + 1);
}

Engine::Underflow Engine::underflow(std::span<const nn::Batch> micro_batches, double label_weight) {
  CISTRON_CHECK(options_.storage.gradients && ctx_.mesh == nullptr,
                "[engine] underflow is counted on one rank that keeps gradients");
  Underflow sums;
  const auto look = [&](std::string_view what, const Tensor& value) {
    if (value.dtype() != DType::kI64) return;
    const auto counts = value.span<int64_t>();
    (what == nn::kMxGradients ? sums.gradients : sums.activations) +=
        {.elements = counts[0], .subnormal = counts[1], .zero = counts[2]};
  };
  set_state(label_weight, state_.learning_rate);
  inputs_.upload(ctx_, micro_batches, state_);
  const Observed observed(ctx_, look);
  backward();
  for (const auto& entry : parameters_->entries())
    if (entry.mx.rows.defined()) sums.weights += ops::mxfp8_underflow(ctx_, entry.mx.rows);
  return sums;
}

void Engine::evaluate_part(int64_t tokens) {
  ops::zero(ctx_, {.out = losses_.cross_entropy});
  ops::zero(ctx_, {.out = losses_.router});
  parameters_->begin_pass(nn::LocalParameters::Pass::kEvaluate);
  decoder_.evaluate(ctx_, evaluation_inputs_.batches()[0], nll_.rows(0, tokens), losses_);
  parameters_->end_pass();
}

Engine::Evaluation Engine::evaluate(const nn::Batch& batch) {
  ++evaluation_.step;
  evaluation_inputs_.upload(ctx_, std::span(&batch, 1), evaluation_);
  with_room([&] { evaluate_part(batch.num_tokens()); });
  const std::array parts{nll_};
  ops::publish(ctx_, {.parts = parts, .number = &evaluation_inputs_.state()->step, .out = published_nll_});
  Evaluation sums;
  if (ctx_.device.is_meta()) return sums;
  const auto bytes = ops::await_published(queue_.get(), published_nll_, evaluation_.step);
  const std::span nll(reinterpret_cast<const float*>(bytes.data()), static_cast<size_t>(batch.num_tokens()));
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
