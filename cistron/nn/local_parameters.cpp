#include "cistron/nn/local_parameters.h"

#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/core/rng.h"
#include "cistron/ops/elementwise.h"

namespace cistron::nn {

namespace {

LocalParameters::Entry make_entry(const Parameter& parameter, Precision precision, const ParameterArenas& arenas) {
  const Shape shape = parameter.local_shape();
  LocalParameters::Entry entry{.parameter = &parameter, .master = Tensor::empty(arenas.parameters, shape, DType::kF32)};
  if (precision == Precision::kBF16 && !parameter.keep_f32) entry.working = Tensor::empty(arenas.parameters, shape, DType::kBF16);
  if (arenas.gradients != nullptr) entry.grad = Tensor::empty(arenas.gradients, shape, DType::kF32);
  if (arenas.optimizer != nullptr) {
    entry.m = Tensor::empty(arenas.optimizer, shape, DType::kF32);
    entry.v = Tensor::empty(arenas.optimizer, shape, DType::kF32);
  }
  return entry;
}

// Element i of the whole parameter is number i of the parameter's own stream, so that any slice starts the same in any layout.
void draw(Context& ctx, const Parameter& parameter, uint64_t seed, const Tensor& master) {
  constexpr int64_t kChunk = 1 << 16;
  const Rng rng(seed, stream_of(parameter.name.c_str()));
  const int64_t rows = std::max<int64_t>(parameter.shape[0], 1);
  const auto first = static_cast<uint64_t>(parameter.begin * (parameter.shape.numel() / rows));
  const auto values = master.span<float>();
  const auto size = static_cast<int64_t>(values.size());
  ctx.parallel_for(ceil_div(size, kChunk), [&](int64_t chunk) {
    for (int64_t i = chunk * kChunk; i < std::min(size, (chunk + 1) * kChunk); ++i)
      values[static_cast<size_t>(i)] =
          parameter.init == Init::kOnes ? 1.0F
                                        : static_cast<float>(parameter.init_std * rng.normal(first + static_cast<uint64_t>(i)));
  });
}

}  // namespace

LocalParameters::LocalParameters(const std::vector<const Parameter*>& parameters, Precision precision,
                                 const ParameterArenas& arenas) {
  for (const Parameter* parameter : parameters) {
    index_[parameter] = entries_.size();
    entries_.push_back(make_entry(*parameter, precision, arenas));
  }
}

void LocalParameters::initialise(Context& ctx, uint64_t seed) {
  if (ctx.device.is_meta()) return;
  for (auto& entry : entries_) {
    draw(ctx, *entry.parameter, seed, entry.master);
    if (entry.m.defined()) ops::zero(ctx, {.out = entry.m});
    if (entry.v.defined()) ops::zero(ctx, {.out = entry.v});
  }
  refresh_working(ctx);
}

void LocalParameters::refresh_working(Context& ctx) {
  for (auto& entry : entries_)
    if (entry.working.defined()) ops::cast(ctx, {.x = entry.master, .out = entry.working});
}

void LocalParameters::begin_step() {
  for (auto& entry : entries_) entry.has_grad = false;
}

void LocalParameters::check_all_have_grads() const {
  for (const auto& entry : entries_) CISTRON_CHECK(entry.has_grad, "[parameters] '{}' got no gradient", entry.parameter->name);
}

LocalParameters::Entry& LocalParameters::find(const std::string& name) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.parameter->name == name; });
  CISTRON_CHECK(found != entries_.end(), "[parameters] there is no '{}'", name);
  return *found;
}

Tensor LocalParameters::weights(const Parameter& parameter) {
  const Entry& e = entry(parameter);
  return e.working.defined() ? e.working : e.master;
}

GradSink LocalParameters::grad(const Parameter& parameter) {
  Entry& e = entry(parameter);
  CISTRON_CHECK(e.grad.defined(), "[parameters] '{}' was made without a gradient", parameter.name);
  const bool accumulate = e.has_grad;
  e.has_grad = true;
  return {.grad = e.grad, .accumulate = accumulate};
}

LocalParameters::Entry& LocalParameters::entry(const Parameter& parameter) {
  const auto found = index_.find(&parameter);
  CISTRON_CHECK(found != index_.end(), "[parameters] '{}' is not registered", parameter.name);
  return entries_[found->second];
}

}  // namespace cistron::nn
