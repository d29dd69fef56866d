#include "cistron/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "cistron/core/checked.h"
#include "cistron/core/error.h"
#include "cistron/data/pad.h"
#include "cistron/data/split.h"
#include "cistron/dist/single.h"

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

// Of all ranks together; a whole window must fit.
int64_t evaluation_tokens(const RunConfig& c) { return std::max(c.train.micro_batch_tokens, c.data.context); }

}  // namespace

EngineOptions engine_options(const RunConfig& c, const dist::MeshShape& shape, int rank) {
  const auto of_rank = [&](int64_t tokens) { return data::most_tokens_of_rank(tokens, c.data.context, shape.size()); };
  return {.model = c.model,
          .device = c.device.kind == "cuda" ? Device{DeviceKind::kCuda} : Device{},
          .precision = c.precision(),
          .recompute = c.recompute(),
          .experts = c.experts_kind(),
          .mxfp8 = c.mxfp8_layers(),
          .require_fused = c.require_fused,
          .micro_batch_tokens = of_rank(c.train.micro_batch_tokens),
          .eval_batch_tokens = of_rank(evaluation_tokens(c)),
          .micro_batches = c.micro_batches(),
          .sharing = {.shape = shape,
                      .rank = rank,
                      .fsdp = c.parallel.fsdp,
                      .reshard_after_forward = c.parallel.reshard_after_forward},
          .headroom = c.parallel.headroom,
          .storage = c.storage(),
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
      alone_(options_.world == nullptr ? dist::single() : nullptr),
      folder_(options_.run, options_.mode, alone_ ? *alone_ : *options_.world),
      store_(open_store(config_)),
      ranks_(alone_ ? *alone_ : *options_.world, config_, store_.fingerprint()),
      loader_(store_.train(), {.context = config_.data.context,
                               .batch_tokens = config_.train.micro_batch_tokens,
                               .seed = static_cast<uint64_t>(config_.train.seed)}),
      engine_options_(engine_options(config_, ranks_.mesh().shape(), ranks_.rank())) {
  if (config_.mxfp8.statistics && ranks_.size() > 1)
    throw Error(ErrorKind::kUsage, "underflow is counted on one rank", "precision.mxfp8.statistics",
                "leave it out, or use one rank");
  if (store_.valid().num_records() > 0)
    validation_.emplace(store_.valid(), config_.data.context, evaluation_tokens(config_));
  else
    progress_.say("the store has no validation split: nothing is validated");
  const MemoryPlan plan = Engine::plan(engine_options_);
  describe(plan, pool.num_threads());
  engine_ = std::make_unique<Engine>(engine_options_, plan, &pool, &ranks_.mesh());
  resume();
  constexpr int64_t kMasterAndMoments = 12, kSlack = 1 << 20;
  if (!result_.was_finished)  // else its files stay as they are
    folder_.prepare(config_, config_.model.parameters() * kMasterAndMoments + kSlack);
  saver_.emplace(folder_.checkpoints(), Saver::Options{.keep = config_.train.keep_last, .behind = config_.train.save_behind},
                 ranks_.world());
  if (result_.was_finished || !ranks_.is_first()) return;
  if (!folder_.lock()->is_held())
    progress_.warn(fmt::format("cistron: the file system of {} has no locks: see to it that no other process trains this run",
                               folder_.path().string()));
  metrics_.emplace(folder_.path(), state_.step, folder_.lock());
}

void Trainer::describe(const MemoryPlan& plan, int threads) {
  const std::string model = fmt::format("{} parameters, {} active; ", with_commas(config_.model.parameters()),
                                        with_commas(config_.model.active_parameters()));
  const std::string mine = fmt::format("{}; recipe {}, {} threads", plan.report(), config_.recipe, threads);
  if (ranks_.size() == 1) return progress_.say(model + mine);
  const std::string mesh = dist::describe(ranks_.mesh().shape(), config_.model.experts);
  progress_.say(model + mesh.substr(0, mesh.find_last_not_of('\n') + 1) + ranks_.lines(mine));
  ranks_.check_memory(plan.total());
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
  if (!recorded.is_there && ranks_.is_first() && state_.step > 0)
    progress_.warn("cistron: the run's metrics.jsonl is missing: the numbers of its steps so far are lost");
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
    if (due(config_.train.validate_every)) {
      validate();
      count_underflow();
    }
    if (due(config_.train.checkpoint_every) || stopping()) save();
  }
  if (saved_step_ != state_.step) save();
  saver_->wait();
  result_.interrupted = signal_ != 0 && (!at_end() || state_.validation_due);
  result_.signal = signal_;
  result_.step = state_.step;
  result_.tokens = state_.tokens;
  return result_;
}

// Also where a checkpoint behind training failed: all ranks hear of it after the same step.
bool Trainer::stopping() {
  constexpr int kSaveFailed = 1 << 16;  // above every signal
  if (signal_ != 0) return true;
  const int mine = saver_->has_failed() ? kSaveFailed : options_.signal != nullptr ? options_.signal->load() : 0;
  const int all = ranks_.largest(mine);
  if (all >= kSaveFailed) saver_->wait();
  signal_ = all;
  return signal_ != 0;
}

bool Trainer::due(int64_t every) const { return at_end() || (every > 0 && state_.step % every == 0); }

void Trainer::train_step() {
  UnderWay step{.start = Clock::now()};
  std::vector<nn::Batch> batches;
  const int64_t first = state_.tokens / config_.train.micro_batch_tokens;
  for (int64_t j = 0; j < config_.micro_batches(); ++j) step.packed.push_back(loader_.batch(first + j));
  for (auto& batch : step.packed) {
    step.label_weight = std::accumulate(batch.loss_weight.begin(), batch.loss_weight.end(), step.label_weight);
    if (ranks_.size() > 1) batch = data::part_of_rank(batch, ranks_.size(), ranks_.rank());
    batches.push_back(nn::view_of(batch));
  }
  if (step.label_weight <= 0.0) step.label_weight = 1.0;  // nothing to predict: every gradient is zero
  step.learning_rate = learning_rate(config_).at(state_.step + 1);
  const double headroom = engine_->headroom();
  engine_->queue_step(batches, step.label_weight, step.learning_rate);
  if (engine_->headroom() != headroom)
    progress_.say(
        fmt::format("step {}: more was routed to a rank than parallel.headroom = {:.2f} has room for: planned again with {:.2f}",
                    state_.step + 1, headroom, engine_->headroom()));
  step.step = ++state_.step;
  step.tokens = state_.tokens += config_.train.batch_tokens;
  under_way_.push_back(std::move(step));
  while (std::ssize(under_way_) > engine_->ahead()) take_result();
}

void Trainer::take_result() {
  const UnderWay step = std::move(under_way_.front());
  under_way_.pop_front();
  const StepResult result = engine_->next_result();
  const auto now = Clock::now();
  log_step(step, result, std::chrono::duration<double>(now - std::max(step.start, last_result_)).count());
  last_result_ = now;
  if (!result.finite) stop_on_nonfinite(step);
}

void Trainer::catch_up() {
  while (!under_way_.empty()) take_result();
}

void Trainer::log_step(const UnderWay& step, const StepResult& result, double seconds) {
  const double speed = static_cast<double>(config_.train.batch_tokens) / seconds;
  if (metrics_)
    metrics_->log(StepMetrics{.step = step.step,
                              .tokens = step.tokens,
                              .loss = result.loss,
                              .aux_loss = result.router.aux_loss,
                              .z_loss = result.router.z_loss,
                              .lr = step.learning_rate,
                              .grad_norm = result.grad_norm,
                              .tokens_per_second = speed,
                              .router_entropy = result.router.entropy,
                              .expert_load_max_over_mean = result.router.load_max_over_mean});
  result_.loss = result.loss;
  seconds_per_step_ = seconds_per_step_ == 0.0 ? seconds : 0.9 * seconds_per_step_ + 0.1 * seconds;
  progress_.step({.step = step.step,
                  .steps = config_.total_steps(),
                  .loss = result.loss,
                  .tokens_per_second = speed,
                  .seconds_left = seconds_per_step_ * static_cast<double>(config_.total_steps() - step.step)});
}

void Trainer::stop_on_nonfinite(const UnderWay& step) {
  while (engine_->under_way() > 0) engine_->next_result();  // these updated nothing either
  std::vector<nn::Batch> batches;
  for (const auto& batch : step.packed) batches.push_back(nn::view_of(batch));
  const std::string module = engine_->find_nonfinite(batches, step.label_weight);
  saver_->wait();
  throw Error(ErrorKind::kFailed, fmt::format("a number that is not finite at step {}", step.step),
              module.empty() ? "no module showed it again" : fmt::format("first in '{}'", module),
              "the step was not applied; lower optimizer.lr or set optimizer.clip, and --resume from the last checkpoint");
}

void Trainer::validate() {
  catch_up();
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
    if (ranks_.size() > 1)
      batch = data::part_of_rank(batch, ranks_.size(), ranks_.rank());
    else
      data::pad_batch(batch, engine_options_.eval_batch_tokens, std::max(store_.tokenizer().special().end, 0));
    const auto part = engine_->evaluate(nn::view_of(batch));
    sums.nll += part.nll;
    sums.tokens += part.tokens;
  }
  if (sums.tokens == 0) return;
  const ValidationMetrics metrics{
      .step = state_.step, .loss = sums.nll / static_cast<double>(sums.tokens), .tokens = sums.tokens};
  if (metrics_) metrics_->log(metrics);
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

// Of a part of the batch that was trained on last: shares need no more, and its bytes go through the host.
void Trainer::count_underflow() {
  constexpr int64_t kTokens = 8192;
  if (!config_.mxfp8.statistics || config_.recipe != "mxfp8") return;
  const auto whole = loader_.batch(state_.tokens / config_.train.micro_batch_tokens - 1);
  const auto part = data::part_of_rank(whole, static_cast<int>(ceil_div(whole.num_tokens(), kTokens)), 0);
  const nn::Batch batch = nn::view_of(part);
  const auto lost = engine_->underflow(std::span(&batch, 1), static_cast<double>(std::max<int64_t>(part.label_count, 1)));
  metrics_->log(UnderflowMetrics{
      .step = state_.step, .weights = lost.weights, .activations = lost.activations, .gradients = lost.gradients});
}

void Trainer::save() {
  catch_up();
  if (metrics_) metrics_->sync();
  state_.step_state = engine_->state();
  const CheckpointInfo info{.config = config_, .tokenizer = std::string(store_.tokenizer().name()), .state = state_};
  saver_->save(engine_->context(), info, engine_->parameters());
  saved_step_ = state_.step;
}

}  // namespace cistron::train
