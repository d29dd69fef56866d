#include "cistron/eval/cached_model.h"

#include <algorithm>
#include <bit>

#include "cistron/core/checked.h"
#include "cistron/core/error.h"
#include "cistron/core/host_memory.h"
#include "cistron/data/pad.h"
#include "cistron/ops/elementwise.h"
#include "cistron/ops/embedding.h"

namespace cistron::eval {

namespace {

Tensor meta_ints(int64_t count) { return Tensor::view(nullptr, {count}, DType::kI32, Device{DeviceKind::kMeta}); }

Tensor ints(const std::vector<int32_t>& values) { return Tensor::view(std::span(values)); }

}  // namespace

int64_t CachedModel::bytes_per_slot(const model::ModelConfig& model, Precision precision, int64_t capacity) {
  const int64_t element = size_of(activation_dtype(precision));
  return model.layers * capacity * 2 * model.kv_heads * model.head_dim * element;
}

CachedModel::Arenas CachedModel::planned_arenas(const CachedModelOptions& options) {
  const Arenas meta{.parameters = Arena::meta("parameters"),
                    .caches = Arena::meta("keys and values"),
                    .activations = Arena::meta("activations")};
  CachedModel(options, meta, Device{DeviceKind::kMeta}, nullptr).plan();
  require_host_memory(meta.parameters->peak() + meta.caches->peak() + meta.activations->peak(),
                      "use a smaller model, or a smaller --max-tokens");
  const auto planned = [](const Arena& arena) { return Arena::planned(arena.name(), Device{}, host_memory(), arena.peak()); };
  return {.parameters = planned(*meta.parameters), .caches = planned(*meta.caches), .activations = planned(*meta.activations)};
}

CachedModel::CachedModel(const CachedModelOptions& options, ThreadPool* pool)
    : CachedModel(options, planned_arenas(options), Device{}, pool) {}

CachedModel::CachedModel(const CachedModelOptions& options, const Arenas& arenas, Device device, ThreadPool* pool)
    : options_(options),
      ctx_{.device = device, .arena = arenas.activations, .pool = pool, .precision = options.precision},
      decoder_(options.model),
      parameters_(std::make_unique<nn::LocalParameters>(decoder_.parameters(), options.precision,
                                                        nn::ParameterArenas{.parameters = arenas.parameters})),
      normed_(ctx_.empty({options.slots, options.model.hidden})),
      logits_(ctx_.empty({options.slots, options.model.vocabulary}, DType::kF32)),
      nll_(ctx_.empty({options.prefill_tokens}, DType::kF32)),
      nll_sum_(ctx_.empty({1}, DType::kF64)) {
  CISTRON_CHECK(std::has_single_bit(static_cast<uint64_t>(options.prefill_tokens)) && options.capacity <= options.model.context,
                "[cached model] {} tokens of prompts, sequences of {}", options.prefill_tokens, options.capacity);
  ctx_.parameters = parameters_.get();
  const Shape shape{options.slots, 2 * options.model.kv_heads, options.capacity, options.model.head_dim};
  for (int64_t i = 0; i < options.model.layers; ++i)
    caches_.push_back(Tensor::empty(arenas.caches, shape, ctx_.activation_dtype()));
}

CachedModel::~CachedModel() = default;

// Several sizes, since first-fit may need more for less. Prompts of a size between may find no room in one piece: a block then
// lies outside (Arena), within the same total.
void CachedModel::plan() {
  for (int64_t tokens = 1; tokens <= options_.prefill_tokens; tokens *= 2) {
    nn::Batch batch = nn::meta_batch(tokens, 1);
    batch.slots = meta_ints(tokens);
    run_prefill(batch, meta_ints(1));
  }
  for (int64_t rows = 1; rows <= options_.slots; ++rows)
    run_decode({.tokens = meta_ints(rows), .positions = meta_ints(rows), .slots = meta_ints(rows)});
}

void CachedModel::run_prefill(const nn::Batch& batch, const Tensor& last_rows) {
  const int64_t sequences = last_rows.dim(0);
  const Tensor normed = decoder_.hidden_states(ctx_, batch, {}, caches_);
  ops::zero(ctx_, {.out = nll_sum_});
  decoder_.head_nll(ctx_, normed, batch, nll_.rows(0, batch.num_tokens()), nll_sum_);
  ops::embedding_forward(ctx_, {.table = normed, .tokens = last_rows, .out = normed_.rows(0, sequences)});
  decoder_.head_logits(ctx_, normed_.rows(0, sequences), logits_.rows(0, sequences));
}

void CachedModel::run_decode(const nn::Batch& batch) {
  decoder_.head_logits(ctx_, decoder_.hidden_states(ctx_, batch, {}, caches_), logits_.rows(0, batch.num_tokens()));
}

CachedModel::Prompts CachedModel::prefill(data::PackedBatch prompts, std::span<const int32_t> slots) {
  const int64_t tokens = prompts.num_tokens(), sequences = prompts.num_sequences();
  CISTRON_CHECK(sequences == std::ssize(slots) && sequences <= options_.slots && tokens <= options_.prefill_tokens,
                "[cached model] {} prompts of {} tokens for {} slots, planned for {} tokens", sequences, tokens, slots.size(),
                options_.prefill_tokens);
  std::vector<int32_t> last_rows, token_slots;
  for (int64_t s = 0; s < sequences; ++s) {
    const int32_t begin = prompts.cu_seqlens[static_cast<size_t>(s)], end = prompts.cu_seqlens[static_cast<size_t>(s) + 1];
    token_slots.insert(token_slots.end(), static_cast<size_t>(end - begin), slots[static_cast<size_t>(s)]);
    last_rows.push_back(end - 1);
  }
  constexpr int64_t kRows = 16;
  data::pad_batch(prompts, std::min(round_up(tokens, kRows), options_.prefill_tokens), /*token=*/0);
  token_slots.resize(prompts.tokens.size(), -1);
  nn::Batch batch = nn::view_of(prompts);
  batch.slots = ints(token_slots);
  run_prefill(batch, ints(last_rows));
  return {.logits = logits_.rows(0, sequences), .nll = nll_.rows(0, tokens).span<float>()};
}

Tensor CachedModel::decode(const Next& next) {
  run_decode({.tokens = ints(next.tokens), .positions = ints(next.positions), .slots = ints(next.slots)});
  return logits_.rows(0, std::ssize(next.tokens));
}

}  // namespace cistron::eval
