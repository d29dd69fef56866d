#pragma once
// What the tests of whole steps on a card share.
#include <cstring>
#include <string>
#include <vector>

#include "cistron/ops/copy.h"
#include "tests/cuda/support.h"
#include "tests/train/support.h"

namespace cistron::train::test {

constexpr Device kCard{DeviceKind::kCuda, 0};

inline EngineOptions step_options(const Device& device, Precision precision = Precision::kF32, int64_t experts = 8) {
  model::ModelConfig model{.layers = 2,
                           .hidden = 128,
                           .intermediate = 96,
                           .heads = 4,
                           .kv_heads = 2,
                           .experts = experts,
                           .top_k = 2,
                           .context = 64,
                           .vocabulary = 33,
                           .aux_loss = 0.01,
                           .z_loss = 1e-3};
  model.validate();
  return {.model = model, .device = device, .precision = precision, .micro_batch_tokens = 192, .eval_batch_tokens = 128};
}

/// With widths that mxfp8 takes.
inline EngineOptions wide_step_options(const Device& device, Precision precision) {
  EngineOptions options = step_options(device, precision);
  options.model.hidden = options.model.intermediate = 256;
  options.model.heads = options.model.kv_heads = 4;
  options.model.head_dim = 64;
  return options;
}

/// The bytes of one array of every parameter.
inline std::vector<float> values_of(Engine& engine, Tensor nn::LocalParameters::Entry::* array) {
  std::vector<float> all;
  for (const auto& entry : engine.parameters().entries())
    ops::read_pieces(engine.context(), entry.*array, [&](std::span<const std::byte> piece) {
      const auto* values = reinterpret_cast<const float*>(piece.data());
      all.insert(all.end(), values, values + piece.size() / sizeof(float));
    });
  return all;
}

inline std::vector<float> masters_of(Engine& engine) { return values_of(engine, &nn::LocalParameters::Entry::master); }

/// Bits, so that NaNs compare too.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Steps `first` to `last` on random batches that depend on the step alone.
inline std::vector<StepResult> run_steps(Engine& engine, const EngineOptions& options, int first, int last, double lr = 1e-3) {
  std::vector<StepResult> results;
  for (int s = first; s <= last; ++s) {
    const auto packed = random_batch(options.micro_batch_tokens, static_cast<uint64_t>(s));
    const nn::Batch batch = nn::view_of(packed);
    results.push_back(engine.step(std::span(&batch, 1), static_cast<double>(packed.label_count), lr));
  }
  return results;
}

}  // namespace cistron::train::test
