#include "cistron/data/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "cistron/io/json.h"
#include "cistron/io/mapped_file.h"

namespace cistron::data {

namespace {

using nlohmann::ordered_json;

constexpr const char* kNameKey = "cistron_tokenizer";

const std::string& text_of(const Tokenizer& tokenizer, int32_t id) { return tokenizer.token_strings()[static_cast<size_t>(id)]; }

// What a character becomes, by asking the tokenizer itself; -1 where it refuses it.
int32_t id_of(const Tokenizer& tokenizer, char character) {
  std::vector<int32_t> ids;
  ReplacedCounts replaced{};
  return tokenizer.encode(std::string_view(&character, 1), OnUnknown::kError, ids, replaced) < 0 ? ids[0] : -1;
}

// Letters whose case does not matter are made upper-case first; there is no such normaliser, so one replacement a letter.
ordered_json normalizer(const Tokenizer& tokenizer) {
  ordered_json steps = ordered_json::array();
  for (char lower = 'a'; lower <= 'z'; ++lower) {
    const char upper = static_cast<char>(lower - 'a' + 'A');
    const int32_t id = id_of(tokenizer, lower);
    if (id < 0 || id != id_of(tokenizer, upper)) continue;
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", std::string(1, lower)}}}, {"content", std::string(1, upper)}});
  }
  if (steps.empty()) return nullptr;
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

ordered_json post_processor(const Tokenizer& tokenizer) {
  const auto special = tokenizer.special();
  ordered_json single = ordered_json::array(), pair = ordered_json::array(), tokens = ordered_json::object();
  const auto add_special = [&](ordered_json& sequence, int32_t id) {
    if (id < 0) return;
    const std::string& text = text_of(tokenizer, id);
    sequence.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
    tokens[text] = {{"id", text}, {"ids", {id}}, {"tokens", {text}}};
  };
  const auto add_sequence = [](ordered_json& sequence, const char* name) {
    sequence.push_back({{"Sequence", {{"id", name}, {"type_id", 0}}}});
  };
  for (auto* sequence : {&single, &pair}) {
    add_special(*sequence, special.begin);
    add_sequence(*sequence, "A");
    add_special(*sequence, special.end);
  }
  add_special(pair, special.begin);
  add_sequence(pair, "B");
  add_special(pair, special.end);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
}

ordered_json tokenizer_json(const Tokenizer& tokenizer) {
  ordered_json vocabulary = ordered_json::object(), added = ordered_json::array();
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string& text = text_of(tokenizer, id);
    vocabulary[text] = id;
    if (text.size() > 1)
      added.push_back({{"id", id},
                       {"content", text},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", true}});
  }
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", normalizer(tokenizer)},
      {"pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "."}}}, {"behavior", "Isolated"}, {"invert", false}}},
      {"post_processor", post_processor(tokenizer)},
      {"decoder", {{"type", "Fuse"}}},
      {"model", {{"type", "WordLevel"}, {"vocab", vocabulary}, {"unk_token", text_of(tokenizer, tokenizer.special().unknown)}}}};
}

ordered_json tokenizer_config(const Tokenizer& tokenizer, int64_t context) {
  const auto special = tokenizer.special();
  ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                      {"model_max_length", context},
                      {"clean_up_tokenization_spaces", false},
                      {kNameKey, tokenizer.name()}};
  const std::pair<const char*, int32_t> roles[] = {{"bos_token", special.begin},
                                                   {"eos_token", special.end},
                                                   {"pad_token", special.pad},
                                                   {"unk_token", special.unknown},
                                                   {"mask_token", special.mask}};
  for (const auto& [role, id] : roles)
    if (id >= 0) config[role] = text_of(tokenizer, id);
  return config;
}

}  // namespace

std::map<std::string, std::string> tokenizer_files(const Tokenizer& tokenizer, int64_t context) {
  return {{"tokenizer.json", tokenizer_json(tokenizer).dump(1) + "\n"},
          {"tokenizer_config.json", tokenizer_config(tokenizer, context).dump(1) + "\n"}};
}

std::string tokenizer_of_directory(const std::filesystem::path& directory) {
  const auto path = directory / "tokenizer_config.json";
  if (!io::is_reachable(path)) return "";
  const io::MappedFile file(path);
  const auto config = io::parse_json({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path.string());
  const bool named = config.is_object() && config.contains(kNameKey) && config[kNameKey].is_string();
  return named ? config[kNameKey].get<std::string>() : "";
}

}  // namespace cistron::data
