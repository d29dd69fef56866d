#include "cistron/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "cistron/core/error.h"
#include "cistron/data/pad.h"

namespace cistron::train {

namespace {

data::Store open_store(const RunConfig& config) {
  if (config.data.store.empty())
    throw Error(ErrorKind::kUsage, "no data to train on", "data.store", "give a directory that `cistron prepare` made");
  data::Store store = data::Store::open(config.data.store);
  const int64_t needed = store.tokenizer().vocab_size();
  if (config.model.vocabulary < needed)
    throw Error(ErrorKind::kUsage,
                fmt::format("model.vocabulary = {} is too small for the store's tokenizer {}", config.model.vocabulary,
                            store.tokenizer().name()),
                config.data.store, fmt::format("set model.vocabulary = {}", needed));
  return store;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

EngineOptions engine_options(const RunConfig& c) {
  return {.model = c.model,
          .precision = c.precision(),
          .recompute = c.recompute(),
          .experts = c.experts_kind(),
          .micro_batch_tokens = c.train.micro_batch_tokens,
          .eval_batch_tokens = std::max(c.train.micro_batch_tokens, c.data.context),  // a whole window must fit
          .beta1 = c.optimizer.betas[0],
          .beta2 = c.optimizer.betas[1],
          .eps = c.optimizer.eps,
          .weight_decay = c.optimizer.weight_decay,
          .clip = c.optimizer.clip};
}

LearningRate learning_rate(const RunConfig& c) {
  const auto& o = c.optimizer;
  const Schedule schedule = o.schedule == "constant" ? Schedule::kConstant
                            : o.schedule == "wsd"    ? Schedule::kWsd
                                                     : Schedule::kCosine;
  return {.schedule = schedule,
          .peak = o.lr,
          .steps = c.total_steps(),
          .warmup = o.warmup,
          .final_share = o.final_lr,
          .decay_share = o.decay_share};
}

Trainer::Trainer(TrainerOptions options, ThreadPool& pool, Progress& progress)
    : options_(std::move(options)),
      config_(options_.config),
      progress_(progress),
      folder_(options_.run, options_.mode),
      store_(open_store(config_)),
      loader_(store_.train(), {.context = config_.data.context,
                               .batch_tokens = config_.train.micro_batch_tokens,
                               .seed = static_cast<uint64_t>(config_.train.seed)}),
      engine_options_(engine_options(config_)) {
  if (store_.valid().num_records() > 0)
    validation_.emplace(store_.valid(), config_.data.context, engine_options_.eval_batch_tokens);
  else
    progress_.say("the store has no validation split: nothing is validated");
  const MemoryPlan plan = Engine::plan(engine_options_);
  progress_.say(fmt::format("{} parameters, {} active; {}; recipe {}, {} threads", with_commas(config_.model.parameters()),
                            with_commas(config_.model.active_parameters()), plan.report(), config_.recipe, pool.num_threads()));
  engine_ = std::make_unique<Engine>(engine_options_, plan, &pool);
  resume();
  if (result_.was_finished) return;  // its files stay as they are
  constexpr int64_t kMasterAndMoments = 12, kSlack = 1 << 20;
  folder_.prepare(config_, config_.model.parameters() * kMasterAndMoments + kSlack);
  metrics_.emplace(folder_.path(), state_.step);
}

void Trainer::resume() {
  const auto checkpoint = folder_.resume_from(config_, store_.fingerprint(), progress_);
  if (checkpoint == nullptr) {
    engine_->initialise(static_cast<uint64_t>(config_.train.seed));
    state_.store_fingerprint = store_.fingerprint();
    return;
  }
  checkpoint->load(engine_->context(), engine_->parameters());
  engine_->refresh_working();
  state_ = checkpoint->info().state;
  engine_->state() = state_.step_state;
  saved_step_ = state_.step;
  const RecordedStep recorded = recorded_step(folder_.path(), state_.step);
  result_.loss = recorded.loss;
  result_.validation = recorded.validation;
  result_.was_finished = at_end() && !state_.validation_due;
  if (result_.was_finished) return;
  progress_.say(fmt::format("resuming after step {} from {}", state_.step, checkpoint->directory().string()));
}

TrainResult Trainer::run() {
  if (state_.validation_due) {
    validate();
    saved_step_ = -1;
  }
  while (!at_end() && !stopping()) {
    train_step();
    if (due(config_.train.validate_every)) validate();
    if (due(config_.train.checkpoint_every) || stopping()) save();
  }
  if (saved_step_ != state_.step) save();
  result_.interrupted = stopping() && (!at_end() || state_.validation_due);
  result_.step = state_.step;
  result_.tokens = state_.tokens;
  return result_;
}

bool Trainer::due(int64_t every) const { return at_end() || (every > 0 && state_.step % every == 0); }

void Trainer::train_step() {
  const auto start = std::chrono::steady_clock::now();
  std::vector<data::PackedBatch> packed;
  std::vector<nn::Batch> batches;
  double label_weight = 0.0;
  const int64_t first = state_.tokens / config_.train.micro_batch_tokens;
  for (int64_t j = 0; j < config_.micro_batches(); ++j) packed.push_back(loader_.batch(first + j));
  for (const auto& batch : packed) {
    batches.push_back(nn::view_of(batch));
    label_weight = std::accumulate(batch.loss_weight.begin(), batch.loss_weight.end(), label_weight);
  }
  if (label_weight <= 0.0) label_weight = 1.0;  // nothing to predict: every gradient is zero
  const double lr = learning_rate(config_).at(state_.step + 1);
  const StepResult result = engine_->step(batches, label_weight, lr);
  ++state_.step;
  state_.tokens += config_.train.batch_tokens;
  log_step(result, lr, seconds_since(start));
  if (!result.finite) stop_on_nonfinite(batches, label_weight);
}

void Trainer::log_step(const StepResult& result, double lr, double seconds) {
  const double speed = static_cast<double>(config_.train.batch_tokens) / seconds;
  metrics_->log(StepMetrics{.step = state_.step,
                            .tokens = state_.tokens,
                            .loss = result.loss,
                            .aux_loss = result.router.aux_loss,
                            .z_loss = result.router.z_loss,
                            .lr = lr,
                            .grad_norm = result.grad_norm,
                            .tokens_per_second = speed,
                            .router_entropy = result.router.entropy,
                            .expert_load_max_over_mean = result.router.load_max_over_mean});
  result_.loss = result.loss;
  seconds_per_step_ = seconds_per_step_ == 0.0 ? seconds : 0.9 * seconds_per_step_ + 0.1 * seconds;
  progress_.step({.step = state_.step,
                  .steps = config_.total_steps(),
                  .loss = result.loss,
                  .tokens_per_second = speed,
                  .seconds_left = seconds_per_step_ * static_cast<double>(config_.total_steps() - state_.step)});
}

void Trainer::stop_on_nonfinite(std::span<const nn::Batch> batches, double label_weight) {
  const std::string module = engine_->find_nonfinite(batches, label_weight);
  throw Error(ErrorKind::kFailed, fmt::format("a number that is not finite at step {}", state_.step),
              module.empty() ? "no module showed it again" : fmt::format("first in '{}'", module),
              "the step was not applied; lower optimizer.lr or set optimizer.clip, and --resume from the last checkpoint");
}

void Trainer::validate() {
  state_.validation_due = false;
  if (!validation_) return;
  Engine::Evaluation sums;
  const int64_t limit = at_end() || config_.train.validate_tokens == 0 ? INT64_MAX : config_.train.validate_tokens;
  for (int64_t i = 0; i < validation_->size() && sums.tokens < limit; ++i) {
    if (stopping()) {
      state_.validation_due = true;
      return;
    }
    data::PackedBatch batch = validation_->batch(i);
    data::pad_batch(batch, engine_options_.eval_batch_tokens, std::max(store_.tokenizer().special().end, 0));
    const auto part = engine_->evaluate(nn::view_of(batch));
    sums.nll += part.nll;
    sums.tokens += part.tokens;
  }
  if (sums.tokens == 0) return;
  const ValidationMetrics metrics{
      .step = state_.step, .loss = sums.nll / static_cast<double>(sums.tokens), .tokens = sums.tokens};
  metrics_->log(metrics);
  result_.validation = metrics;
  if (!std::isfinite(metrics.loss))
    progress_.warn(
        fmt::format("cistron: the held-out loss of step {} is not finite; a record of the validation split is too much "
                    "for the model",
                    metrics.step));
  progress_.say(fmt::format("step {}  held-out loss {:.4f} nats a token ({:.3f} bits, perplexity {:.2f}) over {} tokens",
                            metrics.step, metrics.loss, metrics.bits_per_token(), metrics.perplexity(),
                            with_commas(metrics.tokens)));
}

void Trainer::save() {
  metrics_->sync();
  state_.step_state = engine_->state();
  const CheckpointInfo info{.config = config_, .tokenizer = std::string(store_.tokenizer().name()), .state = state_};
  folder_.checkpoints().save(engine_->context(), info, engine_->parameters(), config_.train.keep_last);
  saved_step_ = state_.step;
}

}  // namespace cistron::train
