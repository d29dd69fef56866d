#include <nlohmann/json.hpp>

#include "cistron/core/error.h"
#include "cistron/io/json.h"
#include "cistron/io/small_file.h"
#include "cistron/model/hugging_face.h"

namespace cistron::model {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& file, const std::string& what, const std::string& advice) {
  throw Error(ErrorKind::kBadData, what, file.string(), advice);
}

json read_json(const fs::path& file) {
  json parsed = io::parse_json(io::read_small_file(file), file.string());
  if (!parsed.is_object()) refuse(file, "not a JSON object", "write the model again with save_pretrained");
  return parsed;
}

class Reader {
 public:
  Reader(const json& object, fs::path file) : object_(object), file_(std::move(file)) {}

  template <class T>
  T get(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) refuse(file_, fmt::format("'{}' is missing", key), "a Mixtral config has it");
    const bool right = std::is_same_v<T, bool>          ? found->is_boolean()
                       : std::is_same_v<T, std::string> ? found->is_string()
                       : std::is_integral_v<T>          ? found->is_number_integer()
                                                        : found->is_number();
    if (!right) refuse(file_, fmt::format("'{}' is {}", key, found->dump()), "it has the wrong type");
    if constexpr (std::is_same_v<T, int64_t>)
      return io::json_integer(*found, file_.string());
    else
      return found->get<T>();
  }
  template <class T>
  T get_or(const char* key, T absent) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? absent : get<T>(key);
  }

 private:
  const json& object_;
  fs::path file_;
};

// Newer writers nest the base under `rope_parameters`, older ones keep it at the top; scaled variants are another model.
double read_rope_theta(const json& config, const fs::path& file) {
  const auto nested = config.find("rope_parameters");
  if (nested == config.end() || nested->is_null()) return Reader(config, file).get_or<double>("rope_theta", 1e6);
  if (!nested->is_object()) refuse(file, fmt::format("'rope_parameters' is {}", nested->dump()), "it has the wrong type");
  const Reader rope(*nested, file);
  for (const char* key : {"rope_type", "type"})
    if (const auto type = rope.get_or<std::string>(key, "default"); type != "default")
      refuse(file, fmt::format("{} '{}' is not supported", key, type), "only 'default' is");
  for (const auto& [key, value] : nested->items())
    if (key != "rope_type" && key != "type" && key != "rope_theta" && !value.is_null())
      refuse(file, fmt::format("rope_parameters {} is not supported", io::json_quoted(key)), "only plain RoPE is");
  const auto theta = rope.get<double>("rope_theta");
  const auto older = Reader(config, file).get_or<double>("rope_theta", theta);
  if (older != theta)
    refuse(file, fmt::format("rope_theta is {} and rope_parameters.rope_theta is {}", older, theta), "make them equal");
  return theta;
}

void check_family(const json& config, const fs::path& file) {
  const Reader reader(config, file);
  const auto type = reader.get_or<std::string>("model_type", "");
  if (type != "mixtral") refuse(file, fmt::format("model_type '{}' is not supported", type), "only 'mixtral' is");
  const auto act = reader.get_or<std::string>("hidden_act", "silu");
  if (act != "silu") refuse(file, fmt::format("hidden_act '{}' is not supported", act), "only 'silu' is");
  const auto window = config.find("sliding_window");
  if (window != config.end() && !window->is_null())
    refuse(file, fmt::format("sliding_window {} is not supported", window->dump()), "set it to null if the model never used it");
  const auto quantized = config.find("quantization_config");
  if (quantized != config.end() && !quantized->is_null())
    refuse(file, "quantized weights are not supported", "save the model in float32, bfloat16 or float16");
  const auto scaling = config.find("rope_scaling");
  if (scaling != config.end() && !scaling->is_null()) refuse(file, "rope_scaling is not supported", "only plain RoPE is");
}

json id_or_null(int64_t id) { return id < 0 ? json(nullptr) : json(id); }

}  // namespace

ModelConfig read_hugging_face_config(const fs::path& directory) {
  const fs::path file = directory / "config.json";
  const json object = read_json(file);
  check_family(object, file);
  const Reader reader(object, file);
  ModelConfig config{.layers = reader.get<int64_t>("num_hidden_layers"),
                     .hidden = reader.get<int64_t>("hidden_size"),
                     .intermediate = reader.get<int64_t>("intermediate_size"),
                     .heads = reader.get<int64_t>("num_attention_heads"),
                     .kv_heads = reader.get_or<int64_t>("num_key_value_heads", reader.get<int64_t>("num_attention_heads")),
                     .head_dim = reader.get_or<int64_t>("head_dim", 0),
                     .experts = reader.get<int64_t>("num_local_experts"),
                     .top_k = reader.get<int64_t>("num_experts_per_tok"),
                     .context = reader.get<int64_t>("max_position_embeddings"),
                     .vocabulary = reader.get<int64_t>("vocab_size"),
                     .rope_theta = read_rope_theta(object, file),
                     .rms_eps = reader.get_or<double>("rms_norm_eps", 1e-5),
                     .init_std = reader.get_or<double>("initializer_range", 0.02),
                     .aux_loss = reader.get_or<double>("router_aux_loss_coef", 0.001),
                     .tied_head = reader.get_or<bool>("tie_word_embeddings", false)};
  try {
    config.validate();
  } catch (const Error& error) {
    refuse(file, error.what(), "the file describes no model that can run");
  }
  return config;
}

std::string hugging_face_config(const ModelConfig& c, const SpecialTokens& tokens) {
  if (c.clip_qkv > 0)
    throw Error(ErrorKind::kUsage, "cannot export this model", "clip_qkv",
                "MixtralForCausalLM does not clamp q, k, v: such a model would give other results there");
  const json object{{"architectures", {"MixtralForCausalLM"}},
                    {"model_type", "mixtral"},
                    {"vocab_size", c.vocabulary},
                    {"hidden_size", c.hidden},
                    {"intermediate_size", c.intermediate},
                    {"num_hidden_layers", c.layers},
                    {"num_attention_heads", c.heads},
                    {"num_key_value_heads", c.kv_heads},
                    {"head_dim", c.head_dim},
                    {"num_local_experts", c.experts},
                    {"num_experts_per_tok", c.top_k},
                    {"max_position_embeddings", c.context},
                    {"rms_norm_eps", c.rms_eps},
                    {"rope_theta", c.rope_theta},
                    {"rope_parameters", {{"rope_theta", c.rope_theta}, {"rope_type", "default"}}},
                    {"initializer_range", c.init_std},
                    {"router_aux_loss_coef", c.aux_loss},
                    {"router_jitter_noise", 0.0},
                    {"output_router_logits", false},
                    {"tie_word_embeddings", c.tied_head},
                    {"hidden_act", "silu"},
                    {"attention_dropout", 0.0},
                    {"sliding_window", nullptr},
                    {"use_cache", true},
                    {"bos_token_id", id_or_null(tokens.begin)},
                    {"eos_token_id", id_or_null(tokens.end)},
                    {"pad_token_id", id_or_null(tokens.pad)},
                    {"dtype", "float32"}};
  return object.dump(2) + "\n";
}

}  // namespace cistron::model
