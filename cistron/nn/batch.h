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

  [[nodiscard]] int64_t num_tokens() const { return tokens.dim(0); }
};

}  // namespace cistron::nn
