#include "cistron/nn/local_parameters.h"

#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/core/rng.h"
#include "cistron/ops/copy.h"
#include "cistron/ops/elementwise.h"

namespace cistron::nn {

namespace {

LocalParameters::Entry make_entry(const Parameter& parameter, const HeldRows& rows, Precision precision,
                                  const ParameterArenas& arenas, const OptimizerStorage& storage) {
  const bool whole = rows.held.count == num_rows(parameter.local_shape());
  const Shape shape = whole ? parameter.local_shape() : rows_shape(parameter.shape, rows.held.count);
  const DType dtype = parameter.keep_f32 ? DType::kF32 : activation_dtype(precision);
  const bool in_mx = in_mxfp8(precision, parameter);
  const DType master = storage.masters || in_mx ? DType::kF32 : dtype;
  LocalParameters::Entry entry{.parameter = &parameter, .rows = rows, .master = Tensor::empty(arenas.parameters, shape, master)};
  if (in_mx && whole) entry.mx = empty_mx(parameter, mx_group(precision), arenas.parameters);
  if (!in_mx && dtype != master) entry.working = Tensor::empty(arenas.parameters, shape, dtype);
  if (arenas.gradients != nullptr && storage.gradients) entry.grad = Tensor::empty(arenas.gradients, shape, DType::kF32);
  if (arenas.optimizer == nullptr) return entry;
  const DType states = parameter.keep_f32 ? DType::kF32 : storage.states;
  for (Tensor* moment : {&entry.m, &entry.v}) *moment = Tensor::empty(arenas.optimizer, shape, states);
  if (states != DType::kU8) return entry;
  for (Tensor* scales : {&entry.m_scale, &entry.v_scale})
    *scales = Tensor::empty(arenas.optimizer, ops::scale_shape(shape), DType::kU8);
  return entry;
}

// Element i of the whole parameter is number i of the parameter's own stream, so that any slice starts the same in any layout,
// and on any device: the host draws.
void draw(Context& ctx, const LocalParameters::Entry& entry, uint64_t seed) {
  constexpr int64_t kChunk = 1 << 16;
  const Parameter& parameter = *entry.parameter;
  const Rng rng(seed, stream_of(parameter.name.c_str()));
  const int64_t first = entry.first_row() * row_width(parameter.shape);
  const auto value = [&](int64_t i) {
    return parameter.init == Init::kOnes ? 1.0F
                                         : static_cast<float>(parameter.init_std * rng.normal(static_cast<uint64_t>(first + i)));
  };
  const auto write = [&]<class T>(T) {
    ops::write_pieces(ctx, entry.master, [&](int64_t begin, std::span<std::byte> piece) {
      const std::span values(reinterpret_cast<T*>(piece.data()), piece.size() / sizeof(T));
      const int64_t before = begin / int64_t{sizeof(T)};
      ctx.parallel_for(ceil_div(std::ssize(values), kChunk), [&](int64_t chunk) {
        for (int64_t i = chunk * kChunk; i < std::min(std::ssize(values), (chunk + 1) * kChunk); ++i)
          values[static_cast<size_t>(i)] = T(value(before + i));
      });
    });
  };
  entry.master.dtype() == DType::kBF16 ? write(bf16{}) : write(float{});
}

std::vector<HeldRows> whole_rows(const std::vector<const Parameter*>& parameters) {
  std::vector<HeldRows> rows;
  for (const Parameter* parameter : parameters) {
    const dist::Range all{0, num_rows(parameter->local_shape())};
    rows.push_back({.held = all, .owned = all});
  }
  return rows;
}

Shape matrices(const Shape& shape) { return shape.rank() == 2 ? Shape{1, shape[0], shape[1]} : shape; }

}  // namespace

Tensor as_matrices(const Tensor& weights) { return weights.reshape(matrices(weights.shape())); }

MxTensor empty_mx(const Parameter& parameter, int64_t group, const std::shared_ptr<Arena>& arena, ops::MxCopies copies) {
  const Context storage{.arena = arena};
  return ops::mxfp8_empty_weights(storage, matrices(parameter.local_shape()), group, parameter.mx_sections, copies);
}

int64_t num_rows(const Shape& shape) { return dist::shard_rows(shape, 1, 0).count; }

int64_t row_width(const Shape& shape) { return shape.rank() > 1 ? shape[shape.rank() - 1] : 1; }

Shape rows_shape(const Shape& shape, int64_t count) { return shape.rank() > 1 ? Shape{count, row_width(shape)} : Shape{count}; }

int64_t LocalParameters::Entry::first_row() const {
  const Shape& shape = parameter->shape;
  return parameter->begin * (num_rows(shape) / std::max<int64_t>(shape[0], 1)) + rows.held.begin;
}

Tensor LocalParameters::Entry::owned(const Tensor& tensor) const {
  const int64_t count = rows.held.count;
  const bool vector = parameter->shape.rank() < 2;
  const Tensor flat = tensor.reshape(vector ? Shape{count} : Shape{count, count == 0 ? 0 : tensor.numel() / count});
  return flat.rows(rows.owned.begin - rows.held.begin, rows.owned.count);
}

ops::AdamWTensor LocalParameters::Entry::for_update(double weight_decay) const {
  return {.master = master,
          .grad = grad,
          .m = m,
          .v = v,
          .working = working,
          .weight_decay = parameter->decay ? static_cast<float>(weight_decay) : 0.0F,
          .m_scale = m_scale,
          .v_scale = v_scale,
          .stream = stream_of(parameter->name.c_str()),
          .first_row = first_row(),
          .mx = mx};
}

LocalParameters::LocalParameters(const std::vector<const Parameter*>& parameters, Precision precision,
                                 const ParameterArenas& arenas, const OptimizerStorage& storage)
    : LocalParameters(parameters, whole_rows(parameters), precision, arenas, storage) {}

LocalParameters::LocalParameters(const std::vector<const Parameter*>& parameters, const std::vector<HeldRows>& rows,
                                 Precision precision, const ParameterArenas& arenas, const OptimizerStorage& storage)
    : gradients_(arenas.gradients) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    index_[parameters[i]] = i;
    by_name_[parameters[i]->name] = i;
    entries_.push_back(make_entry(*parameters[i], rows[i], precision, arenas, storage));
  }
}

void LocalParameters::initialise(Context& ctx, uint64_t seed) {
  if (ctx.device.is_meta()) return;
  for (auto& entry : entries_) {
    draw(ctx, entry, seed);
    for (const Tensor& state : {entry.m, entry.v, entry.m_scale, entry.v_scale})
      if (state.defined()) ops::zero(ctx, {.out = state});
  }
  refresh_working(ctx);
}

void LocalParameters::refresh_working(Context& ctx) {
  for (auto& entry : entries_) {
    if (entry.working.defined()) ops::cast(ctx, {.x = entry.master, .out = entry.working});
    if (entry.mx.rows.defined()) ops::mxfp8_quantize_weights(ctx, {.w = as_matrices(entry.master), .out = entry.mx});
  }
}

void LocalParameters::begin_step() {
  for (auto& entry : entries_) entry.has_grad = false;
}

void LocalParameters::check_all_have_grads() const {
  for (const auto& entry : entries_) CISTRON_CHECK(entry.has_grad, "[parameters] '{}' got no gradient", entry.parameter->name);
}

LocalParameters::Entry& LocalParameters::find(const std::string& name) {
  const auto found = by_name_.find(name);
  CISTRON_CHECK(found != by_name_.end(), "[parameters] there is no '{}'", name);
  return entries_[found->second];
}

Tensor LocalParameters::weights(const Parameter& parameter) {
  const Entry& e = entries_[index_of(parameter)];
  return e.working.defined() ? e.working : e.master;
}

MxOperand LocalParameters::mx_weights(Context& /*ctx*/, const Parameter& parameter, MxCopy copy) {
  const MxTensor& mx = entries_[index_of(parameter)].mx;
  CISTRON_CHECK(mx.rows.defined(), "[parameters] '{}' is not in MXFP8", parameter.name);
  return copy == MxCopy::kRows ? mx.rows : mx.columns;
}

GradSink LocalParameters::grad(const Parameter& parameter) {
  Entry& e = entries_[index_of(parameter)];
  hand_over_ready();
  if (take_ && !e.grad.defined()) e.grad = Tensor::empty(gradients_, e.master.shape(), DType::kF32);
  CISTRON_CHECK(e.grad.defined(), "[parameters] '{}' was made without a gradient", parameter.name);
  const bool accumulate = e.has_grad;
  e.has_grad = true;
  return {.grad = e.grad, .accumulate = accumulate};
}

void LocalParameters::grad_ready(const Parameter& parameter) {
  if (take_) ready_.push_back(&entries_[index_of(parameter)]);
}

void LocalParameters::hand_over_ready() {
  for (Entry* entry : ready_) {
    take_(*entry);
    entry->grad = {};
  }
  ready_.clear();
}

void LocalParameters::finish_gradients() {
  hand_over_ready();
  check_all_have_grads();
}

size_t LocalParameters::index_of(const Parameter& parameter) const {
  const auto found = index_.find(&parameter);
  CISTRON_CHECK(found != index_.end(), "[parameters] '{}' is not registered", parameter.name);
  return found->second;
}

}  // namespace cistron::nn
