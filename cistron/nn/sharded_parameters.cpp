#include "cistron/nn/sharded_parameters.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "cistron/core/error.h"

namespace cistron::nn {

namespace {

// Far enough that the experts' weights come while attention computes, near enough that two layers' never lie in memory at once.
constexpr size_t kLeasesAhead = 4;
// Whole gradients that are being reduced while the next one is filled.
constexpr size_t kReductionsUnderWay = 2;

std::vector<int64_t> rows_by_rank(const Parameter& parameter, const Sharing& sharing) {
  const int parts = place_of(parameter, sharing).parts;
  std::vector<int64_t> rows;
  for (int part = 0; part < parts; ++part) rows.push_back(dist::shard_rows(parameter.local_shape(), parts, part).count);
  return rows;
}

/// The same bytes, kept alive by somebody else: what the background thread works on, so that it never releases memory.
Tensor borrowed(const Tensor& tensor, const Shape& shape) { return Tensor::view(tensor.raw(), shape, tensor.dtype()); }

Tensor as_rows(const Tensor& tensor, const Parameter& parameter, int64_t rows) {
  return borrowed(tensor, rows_shape(parameter.shape, rows));
}

void add_to(const Tensor& sum, const Tensor& part) {
  const auto from = part.span<float>();
  std::ranges::transform(sum.span<float>(), from, sum.span<float>().begin(), std::plus<>());
}

}  // namespace

ShardedParameters::ShardedParameters(const std::vector<const Parameter*>& parameters, Precision precision,
                                     const ParameterArenas& arenas, const Sharing& sharing, const dist::Mesh* mesh,
                                     const OptimizerStorage& storage)
    : LocalParameters(parameters, rows_of_rank(parameters, sharing), precision, arenas, storage),
      reshard_after_forward_(sharing.reshard_after_forward),
      gathered_(arenas.gathered),
      open_(parameters.size()) {
  for (const Parameter* parameter : parameters) rows_.push_back(rows_by_rank(*parameter, sharing));
  if (mesh == nullptr) return;
  world_ = mesh->world().split(0, "fsdp");
  dp_ = mesh->dp().split(0, "fsdp over dp");
  background_ = std::make_unique<dist::Background>([this] { world_->abandon("this rank has left the step"); });
}

dist::Communicator& ShardedParameters::communicator(size_t index) const {
  return is_expert(*entries()[index].parameter) ? *dp_ : *world_;
}

void ShardedParameters::begin_pass(Pass pass) {
  order_ = &orders_[static_cast<size_t>(pass)];
  order_->begin();
}

void ShardedParameters::end_pass() {
  order_->end();
  CISTRON_CHECK(ahead_.empty() && kept_.empty(), "[parameters] a pass ended with {} gathers and {} weights that nobody took",
                ahead_.size(), kept_.size());
  finish_reductions(0);  // every pass finds the memory empty, so what it needs depends on no other
  order_ = nullptr;
}

void ShardedParameters::abandon_pass() {
  for (auto& [place, gather] : ahead_) wait_for(std::move(gather));
  ahead_.clear();
  kept_.clear();
  for (Tensor& open : open_) open = {};
  finish_reductions(0);
  order_ = nullptr;
}

ShardedParameters::Gather ShardedParameters::begin_gather(size_t index) {
  const Entry& entry = entries()[index];
  const Parameter& parameter = *entry.parameter;
  const Tensor& shard = entry.working.defined() ? entry.working : entry.master;
  Gather gather{.whole = Tensor::empty(gathered_, parameter.local_shape(), shard.dtype())};
  if (is_meta()) return gather;
  const Tensor part = as_rows(shard, parameter, entry.rows.held.count);
  const Tensor whole = as_rows(gather.whole, parameter, num_rows(parameter.local_shape()));
  gather.job =
      background_->submit([this, index, part, whole] { communicator(index).all_gather(part, whole, rows_[index]).wait(); });
  return gather;
}

Tensor ShardedParameters::wait_for(Gather gather) {
  if (!is_meta()) background_->wait(gather.job);
  return std::move(gather.whole);
}

void ShardedParameters::gather_ahead(size_t place) {
  const std::vector<size_t>& order = order_->known();
  // What is to be kept from an earlier lease, which is on its way, needs no gather of its own.
  const auto will_be_kept = [&](size_t index) {
    return !reshard_after_forward_ &&
           std::ranges::any_of(ahead_, [&](const auto& gather) { return order[gather.first] == index; });
  };
  for (size_t next = place + 1; next < std::min(order.size(), place + 1 + kLeasesAhead); ++next)
    if (!ahead_.contains(next) && !kept_.contains(order[next]) && !will_be_kept(order[next]))
      ahead_.emplace(next, begin_gather(order[next]));
}

Tensor ShardedParameters::weights(const Parameter& parameter) {
  const size_t index = index_of(parameter);
  if (is_alone(index)) return LocalParameters::weights(parameter);
  CISTRON_CHECK(order_ != nullptr, "[parameters] '{}' is leased outside a pass", parameter.name);
  const size_t place = order_->next(index);
  Tensor whole;
  if (const auto kept = kept_.find(index); kept != kept_.end()) {
    whole = kept->second;
  } else if (auto ahead = ahead_.extract(place); !ahead.empty()) {
    whole = wait_for(std::move(ahead.mapped()));
  } else {
    whole = wait_for(begin_gather(index));
  }
  if (order_->is_last(place))
    kept_.erase(index);
  else if (!reshard_after_forward_)
    kept_.insert({index, whole});
  gather_ahead(place);
  return whole;
}

// What is in MXFP8 has no working copy: the masters are gathered, and quantised as on one rank.
MxOperand ShardedParameters::mx_weights(Context& ctx, const Parameter& parameter, MxCopy copy) {
  if (is_alone(index_of(parameter))) return LocalParameters::mx_weights(ctx, parameter, copy);
  const Tensor whole = weights(parameter);
  const bool rows = copy == MxCopy::kRows;
  const MxTensor mx = empty_mx(parameter, ctx.mx_group(), gathered_, {.rows = rows, .columns = !rows});
  ops::mxfp8_quantize_weights(ctx, {.w = as_matrices(whole), .out = mx});
  return rows ? mx.rows : mx.columns;
}

GradSink ShardedParameters::grad(const Parameter& parameter) {
  if (is_alone(index_of(parameter))) return LocalParameters::grad(parameter);
  Tensor& open = open_[index_of(parameter)];
  if (open.defined()) return {.grad = open, .accumulate = true};
  finish_reductions(kReductionsUnderWay);
  open = Tensor::empty(gathered_, parameter.local_shape(), DType::kF32);
  return {.grad = open, .accumulate = false};
}

void ShardedParameters::grad_ready(const Parameter& parameter) {
  const size_t index = index_of(parameter);
  if (is_alone(index)) return;
  Entry& entry = entries()[index];
  CISTRON_CHECK(open_[index].defined(), "[parameters] '{}' is closed without a gradient", parameter.name);
  Reduction reduction{.whole = std::exchange(open_[index], {})};
  if (entry.has_grad) reduction.part = Tensor::empty(gathered_, entry.grad.shape(), DType::kF32);
  entry.has_grad = true;
  if (!is_meta()) {
    const Tensor whole = as_rows(reduction.whole, parameter, num_rows(parameter.local_shape()));
    const Tensor sum = as_rows(entry.grad, parameter, entry.rows.held.count);
    const Tensor part = reduction.part.defined() ? as_rows(reduction.part, parameter, entry.rows.held.count) : Tensor();
    reduction.job = background_->submit([this, index, whole, sum, part] {
      communicator(index).reduce_scatter(whole, part.defined() ? part : sum, rows_[index]).wait();
      if (part.defined()) add_to(sum, part);
    });
  }
  reductions_.push_back(std::move(reduction));
}

void ShardedParameters::finish_reductions(size_t left) {
  while (reductions_.size() > left) {
    if (!is_meta()) background_->wait(reductions_.front().job);
    reductions_.pop_front();
  }
}

void ShardedParameters::finish_gradients() {
  finish_reductions(0);
  check_all_have_grads();
}

}  // namespace cistron::nn
