#include "cistron/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cistron/core/checked.h"
#include "cistron/core/nearest.h"

namespace cistron::model {

namespace {

[[noreturn]] void refuse(std::string_view key, const std::string& value, std::string_view advice) {
  throw Error(ErrorKind::kUsage, fmt::format("a model cannot have {} = {}", key, value), "model", advice);
}

constexpr int64_t kMost = 2147483647;  // tokens, rows and experts are counted in 32 bits on the device
constexpr int64_t kMostLayers = 2048;  // twice the deepest Transformer published (DeepNet); each layer is planned by itself
constexpr int64_t kMostExperts =
    65536;  // the router scores each token against every one; for more they are retrieved, which is not here

void positive(std::string_view key, int64_t value, int64_t most = kMost) {
  if (value <= 0 || value > most) refuse(key, std::to_string(value), fmt::format("give a number from 1 to {}", most));
}

void within(std::string_view key, double value, Range range) {
  if (!(value >= range.least && value <= range.most))
    refuse(key, fmt::format("{}", value), fmt::format("give a number from {} to {}", range.least, range.most));
}

const std::map<std::string, ModelConfig, std::less<>>& presets() {
  static const std::map<std::string, ModelConfig, std::less<>> all{
      {"tiny-protein",
       {.layers = 4,
        .hidden = 256,
        .intermediate = 256,
        .heads = 4,
        .kv_heads = 4,
        .experts = 8,
        .top_k = 2,
        .context = 512,
        .vocabulary = 33,
        .rope_theta = 1e4}},
      {"mixtral-8x7b",
       {.layers = 32,
        .hidden = 4096,
        .intermediate = 14336,
        .heads = 32,
        .kv_heads = 8,
        .experts = 8,
        .top_k = 2,
        .context = 32768,
        .vocabulary = 32000,
        .rope_theta = 1e6}},
      {"fine-grained-64",
       {.layers = 4,
        .hidden = 2048,
        .intermediate = 1024,
        .heads = 16,
        .kv_heads = 4,
        .experts = 64,
        .top_k = 8,
        .context = 2048,
        .vocabulary = 512,
        .rope_theta = 1e4}},
      {"progen3-3b",
       {.layers = 24,
        .hidden = 1280,
        .intermediate = 3840,
        .heads = 16,
        .kv_heads = 16,
        .experts = 8,
        .top_k = 2,
        .context = 65536,
        .vocabulary = 134,
        .rope_theta = 1e5,
        .clip_qkv = 8.0,
        .aux_loss = 0.05}},
      {"genos-1.2b",
       {.layers = 12,
        .hidden = 1024,
        .intermediate = 4096,
        .heads = 16,
        .kv_heads = 8,
        .experts = 8,
        .top_k = 2,
        .context = 8192,
        .vocabulary = 128,
        .rope_theta = 5e7,
        .aux_loss = 1e-3,
        .z_loss = 1e-3}},
  };
  return all;
}

// Sizes may come from a file that claims anything, so sums and products are checked.
int64_t product(std::initializer_list<int64_t> factors) {
  int64_t result = 1;
  for (const int64_t factor : factors) result = checked_mul(result, factor);
  return result;
}

// Everything but the experts' own weights.
int64_t shared_parameters(const ModelConfig& c) {
  const int64_t attention = product({c.hidden, c.head_dim, checked_mul(2, checked_add(c.heads, c.kv_heads))});
  const int64_t layer = checked_add(checked_add(attention, 2 * c.hidden), product({c.experts, c.hidden}));
  const int64_t tables = product({c.tied_head ? 1 : 2, c.vocabulary, c.hidden});
  return checked_add(checked_add(tables, c.hidden), checked_mul(c.layers, layer));
}

int64_t expert_parameters(const ModelConfig& c, int64_t experts) {
  return product({c.layers, experts, 3, c.hidden, c.intermediate});
}

bool too_large(const ModelConfig& c) {
  try {
    return c.parameters() > int64_t{1} << 50;
  } catch (const Error&) {  // not even countable
    return true;
  }
}

}  // namespace

void ModelConfig::validate() {
  positive("layers", layers, kMostLayers);
  positive("hidden", hidden);
  positive("intermediate", intermediate);
  positive("heads", heads);
  positive("kv_heads", kv_heads);
  positive("experts", experts, kMostExperts);
  positive("top_k", top_k);
  positive("context", context);
  positive("vocabulary", vocabulary);
  if (head_dim == 0) {
    if (hidden % heads != 0) refuse("heads", std::to_string(heads), "it must divide hidden, or give head_dim");
    head_dim = hidden / heads;
  }
  positive("head_dim", head_dim);
  if (head_dim % 2 != 0) refuse("head_dim", std::to_string(head_dim), "rotary positions need an even number");
  if (heads % kv_heads != 0) refuse("kv_heads", std::to_string(kv_heads), fmt::format("it must divide heads = {}", heads));
  if (top_k > experts) refuse("top_k", std::to_string(top_k), fmt::format("there are only {} experts", experts));
  if (too_large(*this)) refuse("a size", "more than 2^50 parameters", "make it smaller");
  within("rope_theta", rope_theta, kRopeTheta);
  within("rms_eps", rms_eps, kRmsEps);
  within("init_std", init_std, kInitStd);
  within("clip_qkv", clip_qkv, kClipQkv);
  within("aux_loss", aux_loss, kRouterLoss);
  within("z_loss", z_loss, kRouterLoss);
}

int64_t ModelConfig::parameters() const { return checked_add(shared_parameters(*this), expert_parameters(*this, experts)); }

int64_t ModelConfig::active_parameters() const { return checked_add(shared_parameters(*this), expert_parameters(*this, top_k)); }

ModelConfig preset(std::string_view name) {
  const auto found = presets().find(name);
  if (found == presets().end())
    throw Error(
        ErrorKind::kUsage, "unknown preset", fmt::format("'{}'", name),
        fmt::format("did you mean '{}'? The presets are {}", nearest(name, preset_names()), fmt::join(preset_names(), ", ")));
  ModelConfig config = found->second;
  config.validate();
  return config;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets()) names.push_back(name);
  return names;
}

}  // namespace cistron::model
