#pragma once
// MODEL, as every verb takes it: a run, a checkpoint, or a Hugging Face directory.
#include <filesystem>
#include <memory>
#include <string>

#include "cistron/data/tokenizer.h"
#include "cistron/model/hugging_face.h"
#include "cistron/nn/local_parameters.h"
#include "cistron/train/checkpoint.h"

namespace cistron::apps {

class ModelSource {
 public:
  /// Reads what describes the model. Throws Error(kBadData) where `path` is none of the three.
  explicit ModelSource(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const model::ModelConfig& config() const { return config_; }
  /// The checkpoint behind it, or null for a Hugging Face directory.
  [[nodiscard]] const train::Checkpoint* checkpoint() const { return checkpoint_.get(); }
  /// False for a Hugging Face directory that holds no safetensors.
  [[nodiscard]] bool has_weights() const;
  /// `name`, or what the model brings where it is empty. Throws Error(kUsage) where neither says, or where the model has too few
  /// rows.
  [[nodiscard]] std::unique_ptr<const data::Tokenizer> tokenizer(const std::string& name) const;
  [[nodiscard]] const std::string& tokenizer_name() const { return tokenizer_; }
  /// Fills the masters, which are of `ctx`'s device.
  void load(Context& ctx, nn::LocalParameters& parameters) const;

 private:
  std::filesystem::path path_;
  model::ModelConfig config_;
  std::string tokenizer_;
  std::unique_ptr<train::Checkpoint> checkpoint_;
};

/// Their ids, for a configuration in Hugging Face's words. Without a tokenizer: none.
model::SpecialTokens special_tokens(const data::Tokenizer* tokenizer);

}  // namespace cistron::apps
