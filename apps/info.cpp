// cistron info MODEL
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/model_source.h"
#include "apps/show.h"
#include "cistron/train/progress.h"

namespace cistron::apps {

namespace {

struct Options : Common {
  std::string model;
};

int run_info(const Options& o) {
  const ModelSource source(o.model);
  const auto& c = source.config();
  const auto tokenizer = source.tokenizer_name().empty() ? nullptr : source.tokenizer("");
  const auto config = nlohmann::ordered_json::parse(model::hugging_face_config(c, special_tokens(tokenizer.get())));
  const auto* checkpoint = source.checkpoint();
  nlohmann::ordered_json step;  // null for a model that has none
  if (checkpoint != nullptr) step = checkpoint->info().state.step;
  if (o.json) {
    const nlohmann::ordered_json line{{"parameters", c.parameters()},
                                      {"active_parameters", c.active_parameters()},
                                      {"config", config},
                                      {"checkpoint_step", step}};
    fmt::print("{}", json_line(line));
    return kDone;
  }
  fmt::print("parameters        {}\nactive parameters {}\n", train::with_commas(c.parameters()),
             train::with_commas(c.active_parameters()));
  fmt::print("tokenizer         {}\n", source.tokenizer_name().empty() ? "none" : source.tokenizer_name());
  if (!source.has_weights()) fmt::print("weights           none: no safetensors file lies there\n");
  if (checkpoint != nullptr)
    fmt::print("checkpoint        {}, step {}\n", checkpoint->directory().string(), checkpoint->info().state.step);
  fmt::print("{}\n", config.dump(2));
  return kDone;
}

}  // namespace

void add_info(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  CLI::App* verb = add_verb(app, "info", "What a model is: parameters, configuration, step", "cistron info runs/tiny --json", *o);
  verb->add_option("MODEL", o->model, "A run, a checkpoint, or a Hugging Face directory")->required()->check(not_empty());
  verb->callback([o, &run] { run = [o] { return run_info(*o); }; });
}

}  // namespace cistron::apps
