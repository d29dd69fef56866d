#pragma once
// Hugging Face's MixtralForCausalLM on disk: config.json and (sharded) safetensors.
//   ours                        theirs
//   embedding                   model.embed_tokens.weight
//   layers.L.attention.qkv      model.layers.L.self_attn.{q,k,v}_proj.weight, rows in that order
//   layers.L.attention.out      model.layers.L.self_attn.o_proj.weight
//   layers.L.moe.router         model.layers.L.block_sparse_moe.gate.weight
//   layers.L.moe.gate_up [E]    model.layers.L.block_sparse_moe.experts.e.{w1,w3}.weight (gate, up)
//   layers.L.moe.down [E]       model.layers.L.block_sparse_moe.experts.e.w2.weight
//   layers.L.{attention,moe}_norm   model.layers.L.{input,post_attention}_layernorm.weight
//   final_norm, head            model.norm.weight, lm_head.weight (absent when tied)
// Import also reads the stacked layout (mlp.experts.gate_up_proj [E, 2F, H], down_proj [E, H, F], mlp.gate.weight), both
// spellings of the RoPE parameters, and f32, bf16 and f16. Every tensor must be used and every parameter filled, or
// Error(kBadData) names it.
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "cistron/core/parameter.h"
#include "cistron/model/config.h"

namespace cistron::model {

/// Reads config.json; the `progen3`-like keys that MixtralForCausalLM does not know are refused.
ModelConfig read_hugging_face_config(const std::filesystem::path& directory);

/// Hugging Face's names and values for `config`, as JSON text. `begin`, `end`, `pad`: token ids, -1 for none.
struct SpecialTokens {
  int64_t begin = -1, end = -1, pad = -1;
};
std::string hugging_face_config(const ModelConfig& config, const SpecialTokens& tokens);

/// Calls `fill` with the name of each of our parameters and its values in f32, our layout. One parameter is in memory at a time.
void import_hugging_face(const std::filesystem::path& directory, const ModelConfig& config,
                         const std::function<void(const std::string& name, std::span<const float> values)>& fill);

/// Fills `out` with elements of one of our parameters, from number `first` on.
using ReadParameter = std::function<void(const std::string& name, int64_t first, std::span<float> out)>;

/// Writes config.json and model*.safetensors, f32, of at most `shard_bytes` each, into `directory` (which must exist), reading
/// one of their tensors at a time: the model is never in memory as a whole.
void export_hugging_face(const std::filesystem::path& directory, const ModelConfig& config, const SpecialTokens& tokens,
                         const ReadParameter& read, int64_t shard_bytes = int64_t{4} << 30);

/// Whether all weights there were written by `export_hugging_face`, and not by another program since.
bool is_exported(const std::filesystem::path& directory);

}  // namespace cistron::model
