// cistron export MODEL --out DIR, and cistron import DIR --out CKPT: Hugging Face both ways.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/model_source.h"
#include "apps/output.h"
#include "apps/show.h"
#include "cistron/core/error.h"
#include "cistron/core/host_memory.h"
#include "cistron/data/tokenizer_files.h"
#include "cistron/dist/single.h"
#include "cistron/io/atomic_file.h"
#include "cistron/model/decoder.h"

namespace cistron::apps {

namespace {

struct Options : Common {
  std::string model, out, tokenizer;
};

void print_result(const Options& o, const ModelSource& source, std::string_view what) {
  if (o.json)
    fmt::print("{}", json_line({{"out", o.out}, {"parameters", source.config().parameters()}}));
  else
    fmt::print("{} {}\n", what, o.out);
}

int run_export(const Options& o) {
  const bool replace = check_output({.path = o.out, .inputs = {o.model}, .is_ours = is_exported}, o);
  const ModelSource source(o.model);
  if (source.checkpoint() == nullptr)
    throw Error(ErrorKind::kUsage, "the model is a Hugging Face directory already", o.model, "give a run or a checkpoint");
  const bool has_tokenizer = !o.tokenizer.empty() || !source.tokenizer_name().empty();
  const auto tokenizer = has_tokenizer ? source.tokenizer(o.tokenizer) : nullptr;
  io::AtomicDirectory directory(o.out, replace);
  model::export_hugging_face(
      directory.partial(), source.config(), special_tokens(tokenizer.get()),
      [&](const auto& name, int64_t first, std::span<float> out) { source.checkpoint()->read(name, first, out); });
  if (tokenizer != nullptr)
    for (const auto& [name, text] : data::tokenizer_files(*tokenizer, source.config().context))
      io::write_file(directory.partial() / name, text);
  directory.commit();
  print_result(o, source, "exported to");
  return kDone;
}

int run_import(const Options& o) {
  const bool replace = check_output({.path = o.out, .inputs = {o.model}, .is_ours = is_imported}, o);
  const ModelSource source(o.model);
  require_host_memory(source.config().parameters() * static_cast<int64_t>(sizeof(float)), "import it on a larger machine");
  const model::Decoder decoder(source.config());
  nn::LocalParameters parameters(decoder.parameters(), Precision::kF32,
                                 {.parameters = Arena::growing("parameters", Device{}, host_memory())});
  Context host;
  source.load(host, parameters);
  train::CheckpointInfo info{.tokenizer = o.tokenizer.empty() ? source.tokenizer_name() : o.tokenizer};
  if (!info.tokenizer.empty()) (void)source.tokenizer(info.tokenizer);  // refused here rather than when it is needed
  info.config.model = source.config();
  train::save_checkpoint(host, o.out, info, train::slices_of(parameters), replace, *dist::single());
  print_result(o, source, "imported to");
  return kDone;
}

}  // namespace

void add_export(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  CLI::App* verb = add_verb(app, "export", "Write a model as Hugging Face's MixtralForCausalLM, with its tokenizer",
                            "cistron export runs/tiny --out exported/tiny", *o, true);
  verb->add_option("MODEL", o->model, "A run or a checkpoint")->required()->check(not_empty());
  verb->add_option("--out", o->out, "The directory to write")->required();
  verb->add_option("--tokenizer", o->tokenizer, "For a model that brings none");
  verb->callback([o, &run] { run = [o] { return run_export(*o); }; });
}

void add_import(CLI::App& app, Run& run) {
  const auto o = std::make_shared<Options>();
  CLI::App* verb = add_verb(app, "import", "Read Hugging Face's MixtralForCausalLM into a checkpoint",
                            "cistron import exported/tiny --out checkpoints/tiny", *o, true);
  verb->add_option("DIR", o->model, "The directory to read")->required()->check(not_empty());
  verb->add_option("--out", o->out, "The checkpoint to write")->required();
  verb->add_option("--tokenizer", o->tokenizer, "For a model that brings none: esm2 or nucleotide");
  verb->callback([o, &run] { run = [o] { return run_import(*o); }; });
}

}  // namespace cistron::apps
