#include "cistron/train/layouts.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <numeric>
#include <optional>

namespace cistron::train {

namespace {

int64_t held_parameters(const EngineOptions& options, const model::Decoder& decoder) {
  const auto parameters = decoder.parameters();
  const auto rows = nn::rows_of_rank(parameters, options.sharing);
  int64_t sum = 0;
  for (size_t i = 0; i < rows.size(); ++i) sum += rows[i].held.count * nn::row_width(parameters[i]->shape);
  return sum;
}

// A change to a configuration, or to the number of ranks, and how to ask for it.
struct Change {
  std::string text;
  RunConfig config;
  dist::MeshShape shape;
};

std::vector<Change> changes(const RunConfig& config, const dist::MeshShape& shape) {
  std::vector<Change> all;
  Change now{.config = config, .shape = shape};
  const auto add = [&](const std::string& text, const std::function<void(Change&)>& change) {
    change(now);  // each on top of those before
    now.text += (now.text.empty() ? "" : " ") + text;
    all.push_back(now);
  };
  if (!config.parallel.fsdp) add("--set parallel.fsdp=true", [](Change& c) { c.config.parallel.fsdp = true; });
  if (!config.parallel.reshard_after_forward)
    add("--set parallel.reshard_after_forward=true", [](Change& c) { c.config.parallel.reshard_after_forward = true; });
  if (config.train.recompute == "none") add("--set train.recompute=mlp", [](Change& c) { c.config.train.recompute = "mlp"; });
  const std::string before_layer = now.text.substr(0, now.text.rfind("--set train.recompute"));
  if (config.train.recompute != "layer") {
    now.text =
        before_layer.empty() || before_layer.back() != ' ' ? before_layer : before_layer.substr(0, before_layer.size() - 1);
    add("--set train.recompute=layer", [](Change& c) { c.config.train.recompute = "layer"; });
  }
  const std::string before_batch = now.text;
  for (int64_t tokens = config.train.micro_batch_tokens / 2; tokens >= config.data.context; tokens /= 2) {
    if (config.train.batch_tokens % tokens != 0) break;
    now.text = before_batch;
    add(fmt::format("--set train.micro_batch_tokens={}", tokens), [&](Change& c) { c.config.train.micro_batch_tokens = tokens; });
  }
  const std::string before_ranks = now.text;
  constexpr int kMostRanks = 4096;
  for (int dp = 2 * shape.dp; dp * shape.ep <= kMostRanks; dp *= 2) {
    now.text = before_ranks;
    add(fmt::format("--gpus {}", dp * shape.ep), [&](Change& c) { c.shape.dp = dp; });
  }
  return all;
}

}  // namespace

std::vector<dist::MeshShape> legal_layouts(int ranks, int64_t experts) {
  std::vector<dist::MeshShape> all;
  for (int ep = 1; ep <= std::min<int64_t>(ranks, experts); ++ep)
    if (ranks % ep == 0) all.push_back({.dp = ranks / ep, .ep = ep});
  return all;
}

LayoutPlan plan_layout(const RunConfig& config, const dist::MeshShape& shape) {
  LayoutPlan most{.shape = shape};
  std::map<int, model::Decoder> decoders;  // ranks that hold the same experts have the same parameters
  for (int rank = 0; rank < shape.size(); ++rank) {
    const EngineOptions options = engine_options(config, shape, rank);
    const auto& decoder = decoders.try_emplace(shape.ep_index(rank), options.model, decoder_options(options)).first->second;
    const int64_t held = held_parameters(options, decoder);
    if (held > most.parameters) most.rank = rank;
    most.parameters = std::max(most.parameters, held);
  }
  most.memory = Engine::plan(engine_options(config, shape, most.rank));
  return most;
}

std::string what_would_fit(const RunConfig& config, const dist::MeshShape& shape, int64_t memory) {
  for (const Change& change : changes(config, shape))
    if (plan_layout(change.config, change.shape).memory.total() <= memory) return change.text;
  return {};
}

}  // namespace cistron::train
