#include "cistron/model/hugging_face.h"

#include <algorithm>
#include <array>
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

// One of our parameters, in their terms. `stacked` is how versions that keep all experts in one tensor write it. Pieces are named
// one by one: a configuration may claim any number of experts, and the first that is missing ends it.
struct Mapping {
  std::string ours;
  int64_t numel = 0;
  int64_t num_pieces = 0;
  std::function<Piece(int64_t)> piece;
  std::optional<Piece> stacked;
};

Mapping whole(std::string ours, std::string theirs, std::vector<int64_t> shape) {
  int64_t numel = 1;
  for (const int64_t dim : shape) numel = checked_mul(numel, dim);
  const Piece all{std::move(theirs), std::move(shape), 0};
  return {.ours = std::move(ours), .numel = numel, .num_pieces = 1, .piece = [all](int64_t) { return all; }};
}

Mapping map_qkv(const ModelConfig& c, const std::string& ours, const std::string& theirs) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, h = c.hidden;
  const std::array<Piece, 3> pieces{{{theirs + ".self_attn.q_proj.weight", {q, h}, 0},
                                     {theirs + ".self_attn.k_proj.weight", {kv, h}, q * h},
                                     {theirs + ".self_attn.v_proj.weight", {kv, h}, (q + kv) * h}}};
  return {.ours = ours + ".attention.qkv", .numel = (q + 2 * kv) * h, .num_pieces = 3, .piece = [pieces](int64_t i) {
            return pieces[static_cast<size_t>(i)];
          }};
}

Mapping map_gate_up(const ModelConfig& c, const std::string& ours, const std::string& theirs) {
  const int64_t half = c.intermediate * c.hidden;
  const auto piece = [=, shape = std::vector{c.intermediate, c.hidden}](int64_t i) {
    const std::string name = fmt::format("{}.block_sparse_moe.experts.{}.{}.weight", theirs, i / 2, i % 2 != 0 ? "w3" : "w1");
    return Piece{name, shape, i * half};
  };
  return {.ours = ours + ".moe.gate_up",
          .numel = 2 * c.experts * half,
          .num_pieces = 2 * c.experts,
          .piece = piece,
          .stacked = Piece{theirs + ".mlp.experts.gate_up_proj", {c.experts, 2 * c.intermediate, c.hidden}, 0}};
}

Mapping map_down(const ModelConfig& c, const std::string& ours, const std::string& theirs) {
  const int64_t size = c.intermediate * c.hidden;
  const auto piece = [=, shape = std::vector{c.hidden, c.intermediate}](int64_t e) {
    return Piece{fmt::format("{}.block_sparse_moe.experts.{}.w2.weight", theirs, e), shape, e * size};
  };
  return {.ours = ours + ".moe.down",
          .numel = c.experts * size,
          .num_pieces = c.experts,
          .piece = piece,
          .stacked = Piece{theirs + ".mlp.experts.down_proj", {c.experts, c.hidden, c.intermediate}, 0}};
}

template <class Visit>
void each_of_layer(const ModelConfig& c, int64_t layer, const Visit& visit) {
  const std::string ours = fmt::format("layers.{}", layer), theirs = fmt::format("model.layers.{}", layer);
  visit(whole(ours + ".attention_norm", theirs + ".input_layernorm.weight", {c.hidden}));
  visit(map_qkv(c, ours, theirs));
  visit(whole(ours + ".attention.out", theirs + ".self_attn.o_proj.weight", {c.hidden, c.heads * c.head_dim}));
  visit(whole(ours + ".moe_norm", theirs + ".post_attention_layernorm.weight", {c.hidden}));
  Mapping router = whole(ours + ".moe.router", theirs + ".block_sparse_moe.gate.weight", {c.experts, c.hidden});
  router.stacked = Piece{theirs + ".mlp.gate.weight", {c.experts, c.hidden}, 0};
  visit(router);
  visit(map_gate_up(c, ours, theirs));
  visit(map_down(c, ours, theirs));
}

template <class Visit>
void for_each_mapping(const ModelConfig& c, const Visit& visit) {
  visit(whole("embedding", "model.embed_tokens.weight", {c.vocabulary, c.hidden}));
  for (int64_t layer = 0; layer < c.layers; ++layer) each_of_layer(c, layer, visit);
  visit(whole("final_norm", "model.norm.weight", {c.hidden}));
  if (!c.tied_head) visit(whole("head", "lm_head.weight", {c.vocabulary, c.hidden}));
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
    const auto each = [&](const auto& visit) {
      if (stacked) return visit(*mapping.stacked);
      for (int64_t i = 0; i < mapping.num_pieces; ++i) visit(mapping.piece(i));
    };
    each([&](const Piece& piece) { check(piece); });
    values.resize(static_cast<size_t>(mapping.numel));  // as large as the file, now that its shapes are known
    each([&](const Piece& piece) { read(piece, values); });
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

// Every tensor of theirs, and where in which of our parameters it begins.
struct Exported {
  std::vector<io::TensorSpec> specs;
  std::vector<std::pair<std::string, int64_t>> ours;
};

Exported tensors_of(const ModelConfig& config) {
  Exported all;
  for_each_mapping(config, [&](const Mapping& mapping) {
    for (int64_t i = 0; i < mapping.num_pieces; ++i) {
      Piece piece = mapping.piece(i);
      all.ours.emplace_back(mapping.ours, piece.begin);
      all.specs.push_back({std::move(piece.theirs), "F32", std::move(piece.shape)});
    }
  });
  return all;
}

}  // namespace

void import_hugging_face(const std::filesystem::path& directory, const ModelConfig& config,
                         const std::function<void(const std::string& name, std::span<const float> values)>& fill) {
  Importer importer(directory);
  std::vector<float> values;
  for_each_mapping(config, [&](const Mapping& mapping) {
    importer.read(mapping, values);
    fill(mapping.ours, values);
  });
  importer.check_all_used(config.tied_head);
}

void export_hugging_face(const std::filesystem::path& directory, const ModelConfig& config, const SpecialTokens& tokens,
                         const ReadParameter& read, int64_t shard_bytes) {
  const std::string json = hugging_face_config(config, tokens);
  const Exported all = tensors_of(config);
  const auto shards = io::plan_shards(all.specs, shard_bytes);
  auto ours = all.ours.begin();  // shards hold the tensors in their order
  std::vector<float> values;
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto name = io::shard_name(static_cast<int64_t>(i), static_cast<int64_t>(shards.size()));
    io::SafetensorsWriter writer(directory / name, shards[i], {{"format", "pt"}, {kWriter.first, kWriter.second}});
    for (const io::TensorSpec& spec : shards[i]) {
      const auto& [name_of_ours, begin] = *ours++;
      values.resize(static_cast<size_t>(io::safetensors_bytes(spec)) / sizeof(float));
      read(name_of_ours, begin, values);
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
