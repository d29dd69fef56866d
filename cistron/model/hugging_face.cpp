#include "cistron/model/hugging_face.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "cistron/core/checked.h"
#include "cistron/io/atomic_file.h"
#include "cistron/io/safetensors.h"

namespace cistron::model {

namespace {

// A part of one of our parameters, `rows` rows long from `begin`, and the tensor that holds it there.
struct Piece {
  std::string theirs;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // in elements of ours
};

// One of our parameters, in their terms. `stacked` is how versions that keep all experts in one tensor write it.
struct Mapping {
  std::string ours;
  int64_t numel = 0;
  std::vector<Piece> pieces;
  std::optional<Piece> stacked;
};

Mapping whole(std::string ours, std::string theirs, std::vector<int64_t> shape) {
  int64_t numel = 1;
  for (const int64_t dim : shape) numel = checked_mul(numel, dim);
  return {.ours = std::move(ours), .numel = numel, .pieces = {{std::move(theirs), std::move(shape), 0}}};
}

Mapping map_qkv(const ModelConfig& c, const std::string& ours, const std::string& theirs) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, h = c.hidden;
  return {.ours = ours + ".attention.qkv",
          .numel = (q + 2 * kv) * h,
          .pieces = {{theirs + ".self_attn.q_proj.weight", {q, h}, 0},
                     {theirs + ".self_attn.k_proj.weight", {kv, h}, q * h},
                     {theirs + ".self_attn.v_proj.weight", {kv, h}, (q + kv) * h}}};
}

Mapping map_gate_up(const ModelConfig& c, const std::string& ours, const std::string& theirs) {
  const int64_t half = c.intermediate * c.hidden;
  Mapping mapping{.ours = ours + ".moe.gate_up", .numel = 2 * c.experts * half};
  for (int64_t e = 0; e < c.experts; ++e)
    for (const int64_t up : {0, 1})
      mapping.pieces.push_back({fmt::format("{}.block_sparse_moe.experts.{}.{}.weight", theirs, e, up != 0 ? "w3" : "w1"),
                                {c.intermediate, c.hidden},
                                (2 * e + up) * half});
  mapping.stacked = {theirs + ".mlp.experts.gate_up_proj", {c.experts, 2 * c.intermediate, c.hidden}, 0};
  return mapping;
}

Mapping map_down(const ModelConfig& c, const std::string& ours, const std::string& theirs) {
  const int64_t size = c.intermediate * c.hidden;
  Mapping mapping{.ours = ours + ".moe.down", .numel = c.experts * size};
  for (int64_t e = 0; e < c.experts; ++e)
    mapping.pieces.push_back(
        {fmt::format("{}.block_sparse_moe.experts.{}.w2.weight", theirs, e), {c.hidden, c.intermediate}, e * size});
  mapping.stacked = {theirs + ".mlp.experts.down_proj", {c.experts, c.hidden, c.intermediate}, 0};
  return mapping;
}

void map_layer(const ModelConfig& c, int64_t layer, std::vector<Mapping>& all) {
  const std::string ours = fmt::format("layers.{}", layer), theirs = fmt::format("model.layers.{}", layer);
  all.push_back(whole(ours + ".attention_norm", theirs + ".input_layernorm.weight", {c.hidden}));
  all.push_back(map_qkv(c, ours, theirs));
  all.push_back(whole(ours + ".attention.out", theirs + ".self_attn.o_proj.weight", {c.hidden, c.heads * c.head_dim}));
  all.push_back(whole(ours + ".moe_norm", theirs + ".post_attention_layernorm.weight", {c.hidden}));
  all.push_back(whole(ours + ".moe.router", theirs + ".block_sparse_moe.gate.weight", {c.experts, c.hidden}));
  all.back().stacked = Piece{theirs + ".mlp.gate.weight", {c.experts, c.hidden}, 0};
  all.push_back(map_gate_up(c, ours, theirs));
  all.push_back(map_down(c, ours, theirs));
}

std::vector<Mapping> mappings(const ModelConfig& c) {
  std::vector<Mapping> all{whole("embedding", "model.embed_tokens.weight", {c.vocabulary, c.hidden})};
  for (int64_t layer = 0; layer < c.layers; ++layer) map_layer(c, layer, all);
  all.push_back(whole("final_norm", "model.norm.weight", {c.hidden}));
  if (!c.tied_head) all.push_back(whole("head", "lm_head.weight", {c.vocabulary, c.hidden}));
  return all;
}

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

void decode(const io::SafetensorsView& view, const std::string& where, std::span<float> out) {
  const std::byte* bytes = view.bytes.data();
  const auto each = [&](size_t size, auto&& convert) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = convert(bytes + i * size);
  };
  if (view.spec.dtype == "F32") return static_cast<void>(std::memcpy(out.data(), bytes, view.bytes.size()));
  if (view.spec.dtype == "BF16") return each(2, [](const std::byte* b) { return static_cast<float>(load<bf16>(b)); });
  if (view.spec.dtype == "F16") return each(2, [](const std::byte* b) { return half_to_float(load<uint16_t>(b)); });
  throw Error(ErrorKind::kBadData, fmt::format("tensor '{}' is of {}", view.spec.name, view.spec.dtype), where,
              "F32, BF16 and F16 can be imported");
}

// In the weights' metadata: other programs that save over ours drop it.
constexpr std::pair kWriter{"written_by", "cistron"};

class Importer {
 public:
  explicit Importer(const std::filesystem::path& directory) : where_(directory.string()), model_(directory) {}

  void read(const Mapping& mapping, std::vector<float>& values) {
    const bool stacked = mapping.stacked && model_.contains(mapping.stacked->theirs);
    const auto pieces = stacked ? std::span(&*mapping.stacked, 1) : std::span(mapping.pieces);
    for (const Piece& piece : pieces) check(piece);
    values.resize(static_cast<size_t>(mapping.numel));  // as large as the file, now that its shapes are known
    for (const Piece& piece : pieces) read(piece, values);
  }
  // A tied head may be there as well; rotary frequencies were, in old files. Anything else would be lost unnoticed.
  void check_all_used(bool tied) const {
    for (const auto& [name, view] : model_.tensors()) {
      const bool known = used_.contains(name) || name.ends_with(".rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
      if (!known)
        throw Error(ErrorKind::kBadData, fmt::format("tensor '{}' has no place", name), where_, "is config.json of this model?");
    }
  }

 private:
  void check(const Piece& piece) const {
    if (!model_.contains(piece.theirs))
      throw Error(ErrorKind::kBadData, fmt::format("tensor '{}' is missing", piece.theirs), where_, "the model is incomplete");
    const io::SafetensorsView& view = model_.at(piece.theirs);
    if (view.spec.shape != piece.shape)
      throw Error(ErrorKind::kBadData,
                  fmt::format("tensor '{}' is [{}], config.json wants [{}]", piece.theirs, fmt::join(view.spec.shape, ", "),
                              fmt::join(piece.shape, ", ")),
                  where_, "the configuration belongs to another model");
  }
  void read(const Piece& piece, std::vector<float>& values) {
    const io::SafetensorsView& view = model_.at(piece.theirs);
    int64_t numel = 1;
    for (const int64_t dim : piece.shape) numel *= dim;
    const auto part = std::span(values).subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(numel));
    decode(view, where_, part);
    if (!std::ranges::all_of(part, [](float x) { return std::isfinite(x); }))
      throw Error(ErrorKind::kBadData, fmt::format("tensor '{}' holds a value that is not finite", piece.theirs), where_,
                  "the model is broken; take an earlier one");
    used_.insert(piece.theirs);
  }

  std::string where_;
  io::SafetensorsModel model_;
  std::set<std::string, std::less<>> used_;
};

std::vector<io::TensorSpec> specs_of(const std::vector<Mapping>& all) {
  std::vector<io::TensorSpec> specs;
  for (const Mapping& mapping : all)
    for (const Piece& piece : mapping.pieces) specs.push_back({piece.theirs, "F32", piece.shape});
  return specs;
}

// Which of our parameters holds a tensor of theirs.
std::pair<const Mapping*, const Piece*> find_piece(const std::vector<Mapping>& all, const std::string& theirs) {
  for (const Mapping& mapping : all)
    for (const Piece& piece : mapping.pieces)
      if (piece.theirs == theirs) return {&mapping, &piece};
  CISTRON_CHECK(false, "[export] '{}' is not in the table", theirs);
  return {};
}

}  // namespace

void import_hugging_face(const std::filesystem::path& directory, const ModelConfig& config,
                         const std::function<void(const std::string& name, std::span<const float> values)>& fill) {
  Importer importer(directory);
  std::vector<float> values;
  for (const Mapping& mapping : mappings(config)) {
    importer.read(mapping, values);
    fill(mapping.ours, values);
  }
  importer.check_all_used(config.tied_head);
}

void export_hugging_face(const std::filesystem::path& directory, const ModelConfig& config, const SpecialTokens& tokens,
                         const ReadParameter& read, int64_t shard_bytes) {
  const std::string json = hugging_face_config(config, tokens);
  const auto all = mappings(config);
  const auto shards = io::plan_shards(specs_of(all), shard_bytes);
  std::vector<float> values;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto name = io::shard_name(static_cast<int64_t>(i), static_cast<int64_t>(shards.size()));
    io::SafetensorsWriter writer(directory / name, shards[i], {{"format", "pt"}, {kWriter.first, kWriter.second}});
    for (const io::TensorSpec& spec : shards[i]) {
      const auto [mapping, piece] = find_piece(all, spec.name);
      values.resize(static_cast<size_t>(io::safetensors_bytes(spec)) / sizeof(float));
      read(mapping->ours, piece->begin, values);
      writer.write(spec.name, std::as_bytes(std::span(values)));
    }
    writer.commit();
  }
  if (shards.size() > 1) io::write_shard_index(directory, shards);
  io::write_file(directory / "config.json", json);
}

bool is_exported(const std::filesystem::path& directory) {
  try {
    const io::SafetensorsModel model(directory);
    return std::ranges::all_of(model.files(), [](const auto& file) {
      const auto writer = file->metadata().find(kWriter.first);
      return writer != file->metadata().end() && writer->second == kWriter.second;
    });
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadData) throw;
    return false;
  }
}

}  // namespace cistron::model
