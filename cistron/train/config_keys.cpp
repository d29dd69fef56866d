#include "cistron/train/config_keys.h"

namespace cistron::train {

namespace {

// A macro, since a member chain cannot be a template argument.
#define CISTRON_SLOT(member) [](RunConfig& c) -> Slot { return &c.member; }

constexpr double kMostSize = 2147483647;  // counted in 32 bits on the device
constexpr double kMostCount = 9e18;

const std::vector<Key>& table() {
  static const std::vector<Key> keys{
      {"model", "preset", CISTRON_SLOT(preset), "shape to start from; the keys below change it"},
      {"model", "layers", CISTRON_SLOT(model.layers), "number of layers", 1, kMostSize},
      {"model", "hidden", CISTRON_SLOT(model.hidden), "width of the residual stream", 1, kMostSize},
      {"model", "intermediate", CISTRON_SLOT(model.intermediate), "width of each expert", 1, kMostSize},
      {"model", "heads", CISTRON_SLOT(model.heads), "query heads", 1, kMostSize},
      {"model", "kv_heads", CISTRON_SLOT(model.kv_heads), "key and value heads; divides heads", 1, kMostSize},
      {"model", "head_dim", CISTRON_SLOT(model.head_dim), "width of a head; 0: hidden / heads", 0, kMostSize},
      {"model", "experts", CISTRON_SLOT(model.experts), "experts in each layer", 1, kMostSize},
      {"model", "top_k", CISTRON_SLOT(model.top_k), "experts that a token goes to", 1, kMostSize},
      {"model", "context", CISTRON_SLOT(model.context), "longest sequence that the model knows", 1, kMostSize},
      {"model", "vocabulary", CISTRON_SLOT(model.vocabulary), "rows of the embedding; at least the tokenizer's", 1, kMostSize},
      {"model", "rope_theta", CISTRON_SLOT(model.rope_theta), "base of the rotary positions", model::kRopeTheta.least,
       model::kRopeTheta.most},
      {"model", "rms_eps", CISTRON_SLOT(model.rms_eps), "epsilon of the norms", model::kRmsEps.least, model::kRmsEps.most},
      {"model", "init_std", CISTRON_SLOT(model.init_std), "deviation of the initial weights", model::kInitStd.least,
       model::kInitStd.most},
      {"model", "clip_qkv", CISTRON_SLOT(model.clip_qkv), "queries, keys and values are clamped to this; 0: not",
       model::kClipQkv.least, model::kClipQkv.most},
      {"model", "tied_head", CISTRON_SLOT(model.tied_head), "the head is the embedding"},
      {"data", "store", CISTRON_SLOT(data.store), "directory that `cistron prepare` made"},
      {"data", "context", CISTRON_SLOT(data.context), "longest piece trained on; 0: the model's context", 0, kMostSize},
      {"train", "steps", CISTRON_SLOT(train.steps), "length of the run; beats tokens", 0, kMostCount},
      {"train", "tokens", CISTRON_SLOT(train.tokens), "length of the run in tokens, as 2000000 or \"2M\"", 0, kMostCount},
      {"train", "batch_tokens", CISTRON_SLOT(train.batch_tokens), "tokens in a step", 1, kMostSize},
      {"train", "micro_batch_tokens", CISTRON_SLOT(train.micro_batch_tokens), "tokens at once; 0: batch_tokens", 0, kMostSize},
      {"train", "seed", CISTRON_SLOT(train.seed), "of the initial weights and of the order of data", 0, kMostCount},
      {"train", "validate_every", CISTRON_SLOT(train.validate_every), "steps; 0: only at the end", 0, kMostCount},
      {"train", "validate_tokens", CISTRON_SLOT(train.validate_tokens),
       "tokens of a validation on the way; 0: all, as at the end", 0, kMostCount},
      {"train", "checkpoint_every", CISTRON_SLOT(train.checkpoint_every), "steps; 0: only at the end", 0, kMostCount},
      {"train", "keep_last", CISTRON_SLOT(train.keep_last), "checkpoints that are kept", 1, kMostCount},
      {"train", "save_behind", CISTRON_SLOT(train.save_behind), "write checkpoints behind training, from a copy in memory", 0, 1},
      {"train",
       "recompute",
       CISTRON_SLOT(train.recompute),
       "what is computed again to save memory",
       0,
       0,
       {"none", "mlp", "layer"}},
      {"optimizer", "name", CISTRON_SLOT(optimizer.name), "the optimizer", 0, 0, {"adamw"}},
      {"optimizer", "lr", CISTRON_SLOT(optimizer.lr), "highest learning rate", 0, 1e3},
      {"optimizer", "betas", CISTRON_SLOT(optimizer.betas), "decay of the two moments", 0, 0.999999999},
      {"optimizer", "eps", CISTRON_SLOT(optimizer.eps), "epsilon of the update", 1e-30, 1},
      {"optimizer", "weight_decay", CISTRON_SLOT(optimizer.weight_decay), "decoupled; none on norms", 0, 1e3},
      {"optimizer", "clip", CISTRON_SLOT(optimizer.clip), "largest gradient norm; 0: no clipping", 0, 1e30},
      {"optimizer",
       "schedule",
       CISTRON_SLOT(optimizer.schedule),
       "of the learning rate, after the warm-up",
       0,
       0,
       {"cosine", "wsd", "constant"}},
      {"optimizer", "warmup", CISTRON_SLOT(optimizer.warmup), "steps of linear warm-up", 0, kMostCount},
      {"optimizer", "final_lr", CISTRON_SLOT(optimizer.final_lr), "last learning rate, as a share of lr", 0, 1},
      {"optimizer", "decay_share", CISTRON_SLOT(optimizer.decay_share), "wsd: share of the steps in the final descent", 0, 1},
      {"optimizer",
       "state_dtype",
       CISTRON_SLOT(optimizer.state_dtype),
       "of the two moments; int8: 8 bits, in blocks",
       0,
       0,
       {"fp32", "bf16", "int8"}},
      {"optimizer",
       "masters",
       CISTRON_SLOT(optimizer.masters),
       "none: bf16 weights are updated themselves",
       0,
       0,
       {"fp32", "none"}},
      {"optimizer", "update_in_backward", CISTRON_SLOT(optimizer.update_in_backward),
       "each parameter as its gradient comes; needs clip = 0", 0, 1},
      {"precision",
       "recipe",
       CISTRON_SLOT(recipe),
       "auto: bf16 where the processor multiplies it fast",
       0,
       0,
       {"auto", "fp32", "bf16", "mxfp8"}},
      {"precision", "mxfp8.group", CISTRON_SLOT(mxfp8.group), "values that share a scale: 128 or 32", 32, 128},
      {"precision", "mxfp8.attention", CISTRON_SLOT(mxfp8.attention), "attention's projections too, not the experts alone"},
      {"precision", "mxfp8.bf16_first", CISTRON_SLOT(mxfp8.bf16_first), "so many first layers stay in bf16", 0, kMostSize},
      {"precision", "mxfp8.bf16_last", CISTRON_SLOT(mxfp8.bf16_last), "so many last layers stay in bf16", 0, kMostSize},
      {"precision", "mxfp8.statistics", CISTRON_SLOT(mxfp8.statistics), "log what becomes subnormal or zero, at each validation"},
      {"moe",
       "experts",
       CISTRON_SLOT(experts),
       "grouped: all experts at once; loop: one after the other",
       0,
       0,
       {"grouped", "loop"}},
      {"moe", "aux_loss", CISTRON_SLOT(model.aux_loss), "coefficient of the load-balancing loss", model::kRouterLoss.least,
       model::kRouterLoss.most},
      {"moe", "z_loss", CISTRON_SLOT(model.z_loss), "coefficient of the router's z-loss", model::kRouterLoss.least,
       model::kRouterLoss.most},
      {"moe", "require_fused", CISTRON_SLOT(require_fused), "refuse to run unless the experts' products are fused"},
      {"parallel", "dp", CISTRON_SLOT(parallel.dp), "data-parallel ranks; 0: all that ep leaves", 0, 1e6},
      {"parallel", "ep", CISTRON_SLOT(parallel.ep), "ranks that the experts of a layer are spread over", 1, 1e6},
      {"parallel", "fsdp", CISTRON_SLOT(parallel.fsdp), "ranks hold shards; false: whole copies", 0, 1},
      {"parallel", "reshard_after_forward", CISTRON_SLOT(parallel.reshard_after_forward),
       "gather weights again for backward instead of keeping them", 0, 1},
      {"parallel", "timeout_seconds", CISTRON_SLOT(parallel.timeout_seconds), "longest wait for another rank", 1, 1e9},
      {"parallel", "headroom", CISTRON_SLOT(parallel.headroom), "of routed rows on an expert-parallel rank", 1, 1e6},
      {"device", "kind", CISTRON_SLOT(device.kind), "where to run", 0, 0, {"auto", "cpu", "cuda"}},
      {"device", "threads", CISTRON_SLOT(device.threads), "0: all cores", 0, 4096},
  };
  return keys;
}

#undef CISTRON_SLOT

}  // namespace

std::span<const Key> config_keys() { return table(); }

}  // namespace cistron::train
