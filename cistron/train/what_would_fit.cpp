#include "cistron/train/what_would_fit.h"

#include <utility>
#include <vector>

#include "cistron/core/error.h"

namespace cistron::train {

std::string what_would_fit(EngineOptions options, int64_t available) {
  const std::vector<std::pair<model::Recompute, const char*>> policies{
      {model::Recompute::kNone, "none"}, {model::Recompute::kMlp, "mlp"}, {model::Recompute::kLayer, "layer"}};
  const int64_t tokens = options.micro_batch_tokens;
  const auto given = options.recompute;
  for (int64_t parts = 1; parts <= 64 && tokens % parts == 0 && tokens / parts >= 2; parts *= 2) {
    options.micro_batch_tokens = tokens / parts;
    for (const auto& [recompute, name] : policies) {
      options.recompute = recompute;
      if (recompute < given || Engine::plan(options).total() > available) continue;
      const std::string policy = recompute == given ? "" : fmt::format("train.recompute = \"{}\"", name);
      const std::string batch = parts == 1 ? "" : fmt::format("train.micro_batch_tokens = {}", options.micro_batch_tokens);
      return fmt::format("it fits with {}{}{}", batch, batch.empty() || policy.empty() ? "" : " and ", policy);
    }
  }
  return "no smaller train.micro_batch_tokens fits either: use a smaller model";
}

}  // namespace cistron::train
