#include "apps/model_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "cistron/core/error.h"
#include "cistron/data/tokenizer_files.h"
#include "cistron/io/mapped_file.h"
#include "cistron/ops/copy.h"
#include "cistron/train/checkpoint_folder.h"
#include "cistron/train/progress.h"

namespace cistron::apps {

namespace fs = std::filesystem;

namespace {

std::unique_ptr<train::Checkpoint> open_checkpoint(const fs::path& path) {
  if (io::is_reachable(path / "manifest.json")) return std::make_unique<train::Checkpoint>(path);
  if (!io::is_reachable(path / "checkpoints") || !fs::is_directory(path / "checkpoints")) return nullptr;
  auto found = train::CheckpointFolder(path / "checkpoints").find([](const std::string& line) {
    train::show(stderr, fmt::format("cistron: {}\n", line));
  });
  if (found == nullptr) throw Error(ErrorKind::kBadData, "the run has no checkpoint yet", path.string(), "train it first");
  return found;
}

}  // namespace

ModelSource::ModelSource(const fs::path& path) : path_(path), checkpoint_(open_checkpoint(path)) {
  if (checkpoint_ != nullptr) {
    config_ = checkpoint_->info().config.model;
    tokenizer_ = checkpoint_->info().tokenizer;
  } else if (io::is_reachable(path / "config.json")) {
    config_ = model::read_hugging_face_config(path);
    tokenizer_ = data::tokenizer_of_directory(path);
  } else {
    throw Error(ErrorKind::kBadData, "not a model", path.string(),
                "give a run, a checkpoint, or a directory with Hugging Face's config.json");
  }
  config_.validate();
}

bool ModelSource::has_weights() const {
  return checkpoint_ != nullptr || io::is_reachable(path_ / "model.safetensors") ||
         io::is_reachable(path_ / "model.safetensors.index.json");
}

std::unique_ptr<const data::Tokenizer> ModelSource::tokenizer(const std::string& name) const {
  if (name.empty() && tokenizer_.empty())
    throw Error(ErrorKind::kUsage, "the model brings no tokenizer", path_.string(),
                fmt::format("give --tokenizer, one of {}", fmt::join(data::tokenizer_names(), ", ")));
  const auto names = data::tokenizer_names();
  if (name.empty() && std::ranges::find(names, tokenizer_) == names.end())
    throw Error(ErrorKind::kBadData, fmt::format("the model's tokenizer '{}' is unknown", tokenizer_), path_.string(),
                fmt::format("give --tokenizer, one of {}", fmt::join(names, ", ")));
  auto tokenizer = data::make_tokenizer(name.empty() ? tokenizer_ : name);
  if (tokenizer->vocab_size() > config_.vocabulary)
    throw Error(ErrorKind::kUsage,
                fmt::format("the tokenizer {} has {} tokens and the model {}", tokenizer->name(), tokenizer->vocab_size(),
                            config_.vocabulary),
                path_.string(), "give the model's own with --tokenizer");
  return tokenizer;
}

void ModelSource::load(Context& ctx, nn::LocalParameters& parameters) const {
  if (checkpoint_ != nullptr) return checkpoint_->load(ctx, parameters);
  model::import_hugging_face(path_, config_, [&](const std::string& name, std::span<const float> values) {
    const Tensor& master = parameters.find(name).master;
    CISTRON_CHECK(master.numel() == std::ssize(values), "[import] '{}' has {} values, wanted {}", name, values.size(),
                  master.numel());
    ops::copy(ctx, {.x = Tensor::view(values).reshape(master.shape()), .out = master});
  });
}

model::SpecialTokens special_tokens(const data::Tokenizer* tokenizer) {
  if (tokenizer == nullptr) return {};
  const auto ids = tokenizer->special();
  return {.begin = ids.begin, .end = ids.end, .pad = ids.pad};
}

}  // namespace cistron::apps
