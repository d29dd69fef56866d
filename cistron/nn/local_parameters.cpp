#include "cistron/nn/local_parameters.h"

#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/core/rng.h"
#include "cistron/ops/copy.h"
#include "cistron/ops/elementwise.h"

namespace cistron::nn {

namespace {

LocalParameters::Entry make_entry(const Parameter& parameter, const HeldRows& rows, Precision precision,
                                  const ParameterArenas& arenas) {
  const bool whole = rows.held.count == num_rows(parameter.local_shape());
  const Shape shape = whole ? parameter.local_shape() : rows_shape(parameter.shape, rows.held.count);
  LocalParameters::Entry entry{
      .parameter = &parameter, .rows = rows, .master = Tensor::empty(arenas.parameters, shape, DType::kF32)};
  const DType dtype = parameter.keep_f32 ? DType::kF32 : activation_dtype(precision);
  if (in_mxfp8(precision, parameter)) {
    if (whole) entry.mx = empty_mx(parameter, mx_group(precision), arenas.parameters);
  } else if (dtype != DType::kF32) {
    entry.working = Tensor::empty(arenas.parameters, shape, dtype);
  }
  if (arenas.gradients != nullptr) entry.grad = Tensor::empty(arenas.gradients, shape, DType::kF32);
  if (arenas.optimizer != nullptr) {
    entry.m = Tensor::empty(arenas.optimizer, shape, DType::kF32);
    entry.v = Tensor::empty(arenas.optimizer, shape, DType::kF32);
  }
  return entry;
}

// Element i of the whole parameter is number i of the parameter's own stream, so that any slice starts the same in any layout,
// and on any device: the host draws.
void draw(Context& ctx, const LocalParameters::Entry& entry, uint64_t seed) {
  constexpr int64_t kChunk = 1 << 16;
  const Parameter& parameter = *entry.parameter;
  const Rng rng(seed, stream_of(parameter.name.c_str()));
  const int64_t first = entry.first_row() * row_width(parameter.shape);
  ops::write_pieces(ctx, entry.master, [&](int64_t begin, std::span<std::byte> piece) {
    auto* values = reinterpret_cast<float*>(piece.data());
    const int64_t size = std::ssize(piece) / int64_t{sizeof(float)};
    const auto number = static_cast<uint64_t>(first + begin / int64_t{sizeof(float)});
    ctx.parallel_for(ceil_div(size, kChunk), [&](int64_t chunk) {
      for (int64_t i = chunk * kChunk; i < std::min(size, (chunk + 1) * kChunk); ++i)
        values[i] = parameter.init == Init::kOnes
                        ? 1.0F
                        : static_cast<float>(parameter.init_std * rng.normal(number + static_cast<uint64_t>(i)));
    });
  });
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
  const Tensor flat = tensor.reshape(rows_shape(parameter->shape, rows.held.count));
  return flat.rows(rows.owned.begin - rows.held.begin, rows.owned.count);
}

LocalParameters::LocalParameters(const std::vector<const Parameter*>& parameters, Precision precision,
                                 const ParameterArenas& arenas)
    : LocalParameters(parameters, whole_rows(parameters), precision, arenas) {}

LocalParameters::LocalParameters(const std::vector<const Parameter*>& parameters, const std::vector<HeldRows>& rows,
                                 Precision precision, const ParameterArenas& arenas) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    index_[parameters[i]] = i;
    entries_.push_back(make_entry(*parameters[i], rows[i], precision, arenas));
  }
}

void LocalParameters::initialise(Context& ctx, uint64_t seed) {
  if (ctx.device.is_meta()) return;
  for (auto& entry : entries_) {
    draw(ctx, entry, seed);
    if (entry.m.defined()) ops::zero(ctx, {.out = entry.m});
    if (entry.v.defined()) ops::zero(ctx, {.out = entry.v});
  }
  refresh_working(ctx);
}

void LocalParameters::refresh_working(Context& ctx) {
  for (auto& entry : entries_)
    if (entry.working.defined()) ops::cast(ctx, {.x = entry.master, .out = entry.working});
  quantize(ctx);
}

void LocalParameters::quantize(Context& ctx) {
  for (auto& entry : entries_)
    if (entry.mx.rows.defined()) ops::mxfp8_quantize_weights(ctx, {.w = as_matrices(entry.master), .out = entry.mx});
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
  CISTRON_CHECK(e.grad.defined(), "[parameters] '{}' was made without a gradient", parameter.name);
  const bool accumulate = e.has_grad;
  e.has_grad = true;
  return {.grad = e.grad, .accumulate = accumulate};
}

size_t LocalParameters::index_of(const Parameter& parameter) const {
  const auto found = index_.find(&parameter);
  CISTRON_CHECK(found != index_.end(), "[parameters] '{}' is not registered", parameter.name);
  return found->second;
}

}  // namespace cistron::nn
