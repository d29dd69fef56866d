// What the keys of a configuration mean together.
#include "cistron/core/checked.h"
#include "cistron/train/config.h"

namespace cistron::train {

namespace {

[[noreturn]] void refuse(const std::string& what, std::string_view key, const std::string& advice) {
  throw Error(ErrorKind::kUsage, what, key, advice);
}

void resolve_lengths(RunConfig& c) {
  auto& t = c.train;
  if (t.steps == 0 && t.tokens == 0) refuse("the run has no length", "[train]", "give train.steps or train.tokens");
  if (t.micro_batch_tokens == 0) t.micro_batch_tokens = t.batch_tokens;
  if (t.batch_tokens % t.micro_batch_tokens != 0)
    refuse(fmt::format("train.batch_tokens = {} is not a multiple of train.micro_batch_tokens = {}", t.batch_tokens,
                       t.micro_batch_tokens),
           "[train]", "give a divisor");
  if (c.data.context == 0) c.data.context = c.model.context;
  if (c.data.context > c.model.context)
    refuse(fmt::format("data.context = {} is more than model.context = {}", c.data.context, c.model.context), "[data]",
           "lower it, or raise model.context");
}

}  // namespace

void check_mxfp8(const RunConfig& c) {
  if (c.mxfp8.group != 128 && c.mxfp8.group != 32)
    refuse(fmt::format("precision.mxfp8.group = {}", c.mxfp8.group), "[precision]", "give 128 or 32");
  if (c.recipe != "mxfp8") return;
  if (c.mxfp8.statistics && c.optimizer.update_in_backward)
    refuse("counting underflow takes a backward pass that updates nothing", "precision.mxfp8.statistics",
           "leave out optimizer.update_in_backward");
  if (c.experts == "loop") refuse("the loop over experts runs in fp32 and bf16 alone", "moe.experts", "use \"grouped\"");
  const Device device{c.device.kind == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu};
  model::check_mxfp8(c.model, c.mxfp8_layers(), c.precision(), device, "precision.recipe");
}

int64_t RunConfig::total_steps() const { return train.steps > 0 ? train.steps : ceil_div(train.tokens, train.batch_tokens); }

Precision RunConfig::precision() const {
  CISTRON_CHECK(recipe != "auto", "the recipe was not resolved");
  if (recipe == "mxfp8") return mxfp8.group == 32 ? Precision::kMxfp8Group32 : Precision::kMxfp8;
  return recipe == "bf16" ? Precision::kBF16 : Precision::kF32;
}

model::Mxfp8Layers RunConfig::mxfp8_layers() const {
  return {.bf16_first = mxfp8.bf16_first, .bf16_last = mxfp8.bf16_last, .attention = mxfp8.attention};
}

nn::OptimizerStorage RunConfig::storage() const {
  const DType states = optimizer.state_dtype == "int8"   ? DType::kU8
                       : optimizer.state_dtype == "bf16" ? DType::kBF16
                                                         : DType::kF32;
  return {.masters = optimizer.masters != "none", .states = states, .gradients = !optimizer.update_in_backward};
}

model::Recompute RunConfig::recompute() const {
  if (train.recompute == "mlp") return model::Recompute::kMlp;
  return train.recompute == "layer" ? model::Recompute::kLayer : model::Recompute::kNone;
}

model::Experts RunConfig::experts_kind() const { return experts == "loop" ? model::Experts::kLoop : model::Experts::kGrouped; }

void resolve(RunConfig& config, bool fast_bf16) {
  if (config.model.layers == 0) refuse("the configuration has no model", "[model]", "give model.preset, or all its sizes");
  config.model.validate();
  resolve_lengths(config);
  if (config.recipe == "auto") config.recipe = fast_bf16 ? "bf16" : "fp32";
  if (config.device.kind == "auto") config.device.kind = "cpu";
  if (config.device.kind == "cuda" && config.experts == "loop")
    refuse("the loop over experts runs on the CPU alone", "moe.experts", "use \"grouped\", or device.kind = \"cpu\"");
  check_mxfp8(config);
}

}  // namespace cistron::train
