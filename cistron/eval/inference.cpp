#include "cistron/eval/inference.h"

#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/core/error.h"
#include "cistron/core/host_memory.h"
#include "cistron/ops/copy.h"
#include "cistron/ops/device_memory.h"
#include "cistron/ops/elementwise.h"

namespace cistron::eval {

Inference::Arenas Inference::planned_arenas(const InferenceOptions& options) {
  const Arenas meta{.parameters = Arena::meta("parameters"), .activations = Arena::meta("activations")};
  Inference planning(options, meta, Device{DeviceKind::kMeta}, nullptr);
  planning.forward(nn::meta_batch(options.batch_tokens, 1), planning.nll_);
  if (options.device.is_cpu()) require_host_memory(meta.parameters->peak() + meta.activations->peak(), "use a smaller model");
  const auto planned = [&](const Arena& arena) {
    return Arena::planned(arena.name(), options.device, ops::device_memory(options.device), arena.peak());
  };
  return {.parameters = planned(*meta.parameters), .activations = planned(*meta.activations)};
}

Inference::Inference(const InferenceOptions& options, ThreadPool* pool)
    : Inference(options, planned_arenas(options), options.device, pool) {}

Inference::Inference(const InferenceOptions& options, const Arenas& arenas, Device device, ThreadPool* pool)
    : options_(options),
      ctx_{
          .device = device, .planned = options.device, .arena = arenas.activations, .pool = pool, .precision = options.precision},
      decoder_(options.model, {.mxfp8 = options.mxfp8}),
      parameters_(std::make_unique<nn::LocalParameters>(decoder_.parameters(), options.precision,
                                                        nn::ParameterArenas{.parameters = arenas.parameters})),
      losses_(model::empty_losses(ctx_, options.model)),
      nll_(ctx_.empty({options.batch_tokens}, DType::kF32)) {
  ctx_.parameters = parameters_.get();
  if (ctx_.target().is_cpu()) return;
  const auto array = [&](int64_t size, DType dtype) { return ctx_.empty({size}, dtype); };
  batch_ = {.tokens = array(options.batch_tokens, DType::kI32),
            .positions = array(options.batch_tokens, DType::kI32),
            .cu_seqlens = array(options.batch_tokens + 1, DType::kI32),
            .labels = array(options.batch_tokens, DType::kI32),
            .loss_weight = array(options.batch_tokens, DType::kF32)};
}

Inference::~Inference() = default;

void Inference::forward(const nn::Batch& batch, const Tensor& nll) {
  ops::zero(ctx_, {.out = losses_.cross_entropy});
  ops::zero(ctx_, {.out = losses_.router});
  decoder_.evaluate(ctx_, batch, nll, losses_);
}

nn::Batch Inference::on_device(const nn::Batch& batch) {
  if (!batch_.tokens.defined()) return batch;
  nn::Batch moved = batch_;
  moved.cu_seqlens = batch_.cu_seqlens.rows(0, batch.cu_seqlens.dim(0));
  ops::copy(ctx_, {.x = batch.tokens, .out = moved.tokens});
  ops::copy(ctx_, {.x = batch.positions, .out = moved.positions});
  ops::copy(ctx_, {.x = batch.cu_seqlens, .out = moved.cu_seqlens});
  ops::copy(ctx_, {.x = batch.labels, .out = moved.labels});
  ops::copy(ctx_, {.x = batch.loss_weight, .out = moved.loss_weight});
  return moved;
}

int64_t Inference::padded(int64_t tokens) const {
  constexpr int64_t kRows = 16;
  return options_.device.is_cpu() ? std::min(round_up(tokens, kRows), options_.batch_tokens) : options_.batch_tokens;
}

std::span<const float> Inference::nll(const data::PackedBatch& batch) {
  CISTRON_CHECK(batch.num_tokens() <= options_.batch_tokens && batch.num_tokens() == padded(batch.num_tokens()),
                "[inference] {} tokens, planned for {}", batch.num_tokens(), options_.batch_tokens);
  const Tensor nll = nll_.rows(0, batch.num_tokens());
  forward(on_device(nn::view_of(batch)), nll);
  if (nll.device().is_cpu()) return nll.span<float>();
  host_nll_.resize(static_cast<size_t>(nll_.numel()));
  ops::copy(ctx_, {.x = nll_, .out = Tensor::view(std::span(host_nll_))});
  return host_nll_;
}

}  // namespace cistron::eval
