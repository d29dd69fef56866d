#include "apps/moe_ladder.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>

#include "cistron/core/error.h"
#include "cistron/core/rng.h"
#include "cistron/cpu/fast/onednn.h"
#include "cistron/nn/expert_loop.h"
#include "cistron/nn/local_parameters.h"
#include "cistron/nn/sequential.h"
#include "cistron/ops/copy.h"
#include "cistron/ops/device_memory.h"
#include "cistron/ops/queue.h"

namespace cistron::apps {

namespace {

nn::Sequential make_experts(const MoeShape& s, bool biases) {
  using enum nn::Bias;
  return nn::Sequential{
      nn::Gather{},
      nn::GroupedLinear{{.experts = s.experts,
                         .in = s.hidden,
                         .out = 2 * s.intermediate,
                         .name = "gate_up",
                         .mx_sections = 2,
                         .bias = biases ? kPlain : kNone}},
      nn::ScaledSwiGlu{},
      nn::GroupedLinear{
          {.experts = s.experts, .in = s.intermediate, .out = s.hidden, .name = "down", .bias = biases ? kScaled : kNone}},
      nn::Combine{}};
}

template <class T>
Tensor upload(Context& ctx, const Shape& shape, DType dtype, const std::vector<T>& values) {
  const Tensor out = ctx.empty(shape, dtype);
  if (!ctx.device.is_meta()) ops::copy(ctx, {.x = Tensor::view(std::span(values)).reshape(shape), .out = out});
  return out;
}

Tensor random_rows(Context& ctx, const Shape& shape, uint64_t stream) {
  const Tensor rows = ctx.empty(shape);
  fill_random(ctx, rows, stream);
  return rows;
}

struct Routing {
  Tensor experts, weights;
};

/// The first k of a shuffle of the experts, for each token.
Routing random_routing(Context& ctx, const MoeShape& s) {
  const Rng rng(1, 2);
  std::vector<int32_t> chosen, all(static_cast<size_t>(s.experts));
  std::vector<float> weights(static_cast<size_t>(s.tokens * s.top_k));
  uint64_t draw = 0;
  for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int32_t>(e);
  for (int64_t t = 0; t < s.tokens; ++t)
    for (int64_t j = 0; j < s.top_k; ++j) {
      std::swap(all[static_cast<size_t>(j)],
                all[static_cast<size_t>(j) + rng.below(draw++, static_cast<uint64_t>(s.experts - j))]);
      chosen.push_back(all[static_cast<size_t>(j)]);
    }
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(rng.uniform(draw + i));
  const Shape shape{s.tokens, s.top_k};
  return {upload(ctx, shape, DType::kI32, chosen), upload(ctx, shape, DType::kF32, weights)};
}

/// What all rungs of a precision, with biases or without, share.
struct Operands {
  Operands(Context ctx, const nn::Sequential& experts, const MoeShape& s)
      : parameters(experts.parameters(), ctx.precision, {.parameters = ctx.arena, .gradients = ctx.arena}),
        x(random_rows(ctx, {s.tokens, s.hidden}, 3)),
        dy(random_rows(ctx, {s.tokens, s.hidden}, 4)),
        routing(random_routing(ctx, s)) {
    uint64_t stream = 5;
    for (const auto& entry : parameters.entries()) fill_random(ctx, entry.master, stream++);
    parameters.refresh_working(ctx);
  }
  nn::LocalParameters parameters;
  Tensor x, dy;
  Routing routing;
};

/// One rung: forward and backward, which take turns on one memory.
class Climber {
 public:
  Climber(const Context& ctx, const Rung& rung, const nn::Sequential& experts, const MoeShape& shape, Operands& operands)
      : ctx_(ctx), experts_(experts), shape_(shape), operands_(operands) {
    if (rung.loop) loop_.emplace(*experts.parameters()[0], *experts.parameters()[1]);
    ctx_.parameters = &operands.parameters;
    ctx_.fuse = rung.fuse;
  }

  void forward() {
    y_ = {};
    const ops::Groups groups = ops::empty_groups(ctx_, shape_.tokens, shape_.top_k, shape_.experts);
    ops::build_groups(ctx_, {.experts = operands_.routing.experts, .weights = operands_.routing.weights, .groups = groups});
    y_ = loop_ ? loop_->forward(ctx_, operands_.x, groups, saved_) : experts_.forward(ctx_, operands_.x, groups, saved_);
  }
  void backward() {
    operands_.parameters.begin_step();
    dx_ = {};
    dx_ = loop_ ? loop_->backward(ctx_, operands_.dy, saved_) : experts_.backward(ctx_, operands_.dy, saved_);
  }
  /// After forward.
  [[nodiscard]] int64_t saved_bytes() const { return ctx_.arena->in_use() - y_.bytes(); }

 private:
  Context ctx_;
  const nn::Sequential& experts_;
  std::optional<nn::ExpertLoop> loop_;
  const MoeShape& shape_;
  Operands& operands_;
  nn::Saved saved_;
  Tensor y_;
  nn::Sequential::Gradients dx_;
};

/// Bytes that forward and backward take, twice over, and what lies there in between.
struct Plan {
  int64_t peak = 0, saved = 0;
};
Plan plan_of(const Context& real, const Rung& rung, const nn::Sequential& experts, const MoeShape& shape) {
  Context ctx{.device = {.kind = DeviceKind::kMeta},
              .planned = real.device,
              .arena = Arena::meta("operands"),
              .precision = rung.precision};
  Operands operands(ctx, experts, shape);
  ctx.arena = Arena::meta("activations");
  Climber climber(ctx, rung, experts, shape, operands);
  Plan plan;
  for (int i = 0; i < 2; ++i) {
    climber.forward();
    if (i == 0) plan.saved = climber.saved_bytes();  // later the last gradients are there too
    climber.backward();
  }
  plan.peak = ctx.arena->peak();
  return plan;
}

/// Times work on a card by its own clock, and on a CPU by the wall's.
class Clock {
 public:
  explicit Clock(ops::Queue* queue) : queue_(queue) {}
  template <class F>
  double milliseconds(F&& work) {
    if (queue_ != nullptr) return queue_->milliseconds(work);
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  ops::Queue* queue_;
};

/// A rung with its memory, and on a card its recordings.
class Runner {
 public:
  Runner(const Context& ctx, ops::Queue* queue, const Rung& rung, const nn::Sequential& experts, const MoeShape& shape,
         Operands& operands)
      : clock_(queue) {
    const Plan plan = plan_of(ctx, rung, experts, shape);
    time_.rung = rung;
    time_.saved_bytes = plan.saved;
    Context own = ctx;
    own.precision = rung.precision;
    own.arena = Arena::planned("activations", ctx.device, ops::device_memory(ctx.device), plan.peak);
    climber_ = std::make_unique<Climber>(own, rung, experts, shape, operands);
    climber_->forward();
    climber_->backward();
    if (queue == nullptr) return;
    queue->wait();
    if (rung.loop) {
      time_.host_syncs = 2;  // the counts, forward and backward
      return;
    }
    forward_ = queue->record([&] { climber_->forward(); });
    backward_ = queue->record([&] { climber_->backward(); });
    time_.launches = forward_->launches() + backward_->launches();
  }

  void take_turn(DenseProduct* dense) {
    if (dense != nullptr) dense->run();
    forward_times_.push_back(clock_.milliseconds([&] { forward_ != nullptr ? forward_->replay() : climber_->forward(); }));
    if (dense != nullptr) dense->run();
    backward_times_.push_back(clock_.milliseconds([&] { backward_ != nullptr ? backward_->replay() : climber_->backward(); }));
  }
  /// The turns so far: warming up.
  void forget() {
    forward_times_.clear();
    backward_times_.clear();
  }
  [[nodiscard]] RungTime result() {
    time_.forward_milliseconds = median_of(forward_times_);
    time_.backward_milliseconds = median_of(backward_times_);
    return time_;
  }

 private:
  Clock clock_;
  RungTime time_;
  std::unique_ptr<Climber> climber_;
  std::unique_ptr<ops::Recording> forward_, backward_;
  std::vector<double> forward_times_, backward_times_;
};

/// Empty, or why the rung cannot be what it says.
std::string refusal(const Context& ctx, const Rung& rung, const nn::Sequential& experts, const MoeShape& shape) {
  const int64_t group = mx_group(rung.precision);
  if (group > 0 && (shape.hidden % group != 0 || shape.intermediate % group != 0))
    return fmt::format("widths {} and {} are not multiples of {}", shape.hidden, shape.intermediate, group);
  Context own = ctx;
  own.precision = rung.precision;
  own.fuse = true;
  const auto refusals = rung.fuse ? experts.refusals(own) : std::vector<std::string>();
  return refusals.empty() ? "" : refusals.back();
}

}  // namespace

double MoeShape::forward_flops() const {
  return 6.0 * static_cast<double>(tokens * top_k) * static_cast<double>(hidden) * static_cast<double>(intermediate);
}

std::vector<Rung> rungs_of(const Device& device, bool ablate, bool biases) {
  const bool bf16 = device.is_cuda() || cpu::has_fast_bf16();
  const Precision plain = bf16 ? Precision::kBF16 : Precision::kF32;
  const std::string name = bf16 ? "bf16" : "fp32";
  std::vector<Rung> all{{.variant = "loop", .recipe = name, .precision = plain, .loop = true},
                        {.variant = "grouped", .recipe = name, .precision = plain},
                        {.variant = "grouped", .recipe = "mxfp8/128", .precision = Precision::kMxfp8},
                        {.variant = "fused", .recipe = name, .precision = plain, .fuse = true},
                        {.variant = "fused", .recipe = "mxfp8/128", .precision = Precision::kMxfp8, .fuse = true}};
  if (!ablate) all.erase(all.begin(), all.begin() + 3);
  for (size_t i = 0; biases && i < all.size(); ++i) {
    if (all[i].loop) continue;
    Rung biased = all[i++];
    biased.variant += " biased";
    biased.biases = true;
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(i), biased);
  }
  return all;
}

Ladder climb(const Device& device, ThreadPool& pool, const MoeShape& shape, const std::vector<Rung>& rungs, int turns) {
  const auto queue = ops::make_queue(device);
  Context ctx{.device = device,
              .arena = Arena::growing("operands", device, ops::device_memory(device)),
              .pool = &pool,
              .stream = queue != nullptr ? queue->stream() : nullptr};
  const std::array all_experts{make_experts(shape, false), make_experts(shape, true)};
  std::map<std::pair<Precision, bool>, Operands> operands;
  std::vector<Runner> runners;
  Ladder ladder;
  std::vector<size_t> places;  // of the runners' results
  for (const Rung& rung : rungs) {
    ctx.precision = rung.precision;
    const nn::Sequential& experts = all_experts[rung.biases ? 1 : 0];
    ladder.rungs.push_back({.rung = rung, .refusal = refusal(ctx, rung, experts, shape)});
    if (!ladder.rungs.back().refusal.empty()) continue;
    places.push_back(ladder.rungs.size() - 1);
    Operands& shared = operands.try_emplace({rung.precision, rung.biases}, ctx, experts, shape).first->second;
    runners.emplace_back(ctx, queue.get(), rung, experts, shape, shared);
  }
  ctx.precision = Precision::kBF16;
  const auto dense = queue != nullptr ? std::make_unique<DenseProduct>(ctx, 8192) : nullptr;
  std::vector<double> dense_times;
  constexpr int kWarmUp = 2;
  for (int turn = 0; turn < kWarmUp + turns; ++turn) {
    if (dense != nullptr) dense_times.push_back(queue->milliseconds([&] { dense->run(); }));
    for (Runner& runner : runners) runner.take_turn(dense.get());
    if (turn + 1 != kWarmUp) continue;
    dense_times.clear();
    for (Runner& runner : runners) runner.forget();
  }
  if (dense != nullptr) ladder.dense_tflops = dense->tflops(median_of(dense_times));
  for (size_t i = 0; i < runners.size(); ++i) ladder.rungs[places[i]] = runners[i].result();
  return ladder;
}

}  // namespace cistron::apps
