#pragma once
#include "cistron/core/tensor.h"

namespace cistron::nn {

/// Sequences packed end to end, without padding. T tokens, S sequences.
struct Batch {
  Tensor tokens;       // [T] i32
  Tensor positions;    // [T] i32, from 0 in each sequence
  Tensor cu_seqlens;   // [S + 1] i32: sequence s is tokens [cu_seqlens[s], cu_seqlens[s + 1])
  Tensor labels;       // [T] i32: the token to predict, -1 for none
  Tensor loss_weight;  // [T] f32
  Tensor choices;      // [layers x T, k] i32: experts to take instead of the router's choice, layer by layer; usually undefined

  // Generation. A layer's keys and values are kept in its cache (ops/attention_decode.h); without cu_seqlens, each token goes on
  // with the sequence in its slot instead.
  Tensor cache;  // [slots, 2 kv_heads, capacity, D], of the layer that reads this batch; undefined: nothing is kept
  Tensor slots;  // [T] i32, with a cache

  [[nodiscard]] int64_t num_tokens() const { return tokens.dim(0); }
};

/// Views of the vectors of a packed batch in host memory (data::PackedBatch), which must outlive them.
template <class Packed>
Batch view_of(const Packed& packed) {
  return {.tokens = Tensor::view(std::span(packed.tokens)),
          .positions = Tensor::view(std::span(packed.positions)),
          .cu_seqlens = Tensor::view(std::span(packed.cu_seqlens)),
          .labels = Tensor::view(std::span(packed.labels)),
          .loss_weight = Tensor::view(std::span(packed.loss_weight))};
}

/// Shapes alone, on the meta device, for planning.
inline Batch meta_batch(int64_t tokens, int64_t sequences) {
  const auto array = [](int64_t size, DType dtype) { return Tensor::view(nullptr, {size}, dtype, Device{DeviceKind::kMeta}); };
  return {.tokens = array(tokens, DType::kI32),
          .positions = array(tokens, DType::kI32),
          .cu_seqlens = array(sequences + 1, DType::kI32),
          .labels = array(tokens, DType::kI32),
          .loss_weight = array(tokens, DType::kF32)};
}

}  // namespace cistron::nn
