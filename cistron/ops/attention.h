#pragma once
// Attention over packed sequences, and the rotary embedding ahead of it. `qkv` holds for each token num_heads query heads, then
// num_kv_heads key heads, then num_kv_heads value heads, each of head_dim values. Query head h reads key/value head
// h / (num_heads / num_kv_heads). Sequence s is tokens [cu_seqlens[s], cu_seqlens[s + 1]); nothing crosses sequences; empty ones
// are legal.
//   out[i] = sum over j of softmax_j(scale q_i k_j) v_j,   j <= i if causal;   lse[h, i] = log sum_j exp(scale q_i k_j)
// Blockwise with an online softmax (Dao, "FlashAttention-2", 2023): no [S, S] array is kept. Softmax in f32.
// On the CPU in f32 a sequence has the same bits alone and packed. On CUDA head_dim is at most 256 and scale positive. In bf16
// probabilities and score gradients are rounded to bf16 for the products that follow: on CUDA where head_dim is a multiple of 8,
// on a CPU where it multiplies bf16 fast.
#include "cistron/core/context.h"

namespace cistron::ops {

struct AttentionShape {
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  [[nodiscard]] int64_t qkv_width() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  [[nodiscard]] int64_t out_width() const { return num_heads * head_dim; }
};

/// Throws, tagged with `op`, unless qkv is [T, qkv_width] f32 or bf16 and the heads can share their keys and values.
void check_qkv(const char* op, const Tensor& qkv, const AttentionShape& shape);

struct AttentionForward {
  const Tensor& qkv;         // [T, (heads + 2 kv_heads) D]
  const Tensor& cu_seqlens;  // [S + 1] i32, from 0 to T
  AttentionShape shape;
  float scale = 1.0F;
  bool causal = true;
  const Tensor& out;  // [T, heads D], qkv's dtype
  const Tensor& lse;  // [heads, T] f32
};
void attention_forward(Context& ctx, const AttentionForward& args);

struct AttentionBackward {
  const Tensor& dout;
  const Tensor& qkv;
  const Tensor& out;
  const Tensor& lse;
  const Tensor& cu_seqlens;
  AttentionShape shape;
  float scale = 1.0F;
  bool causal = true;
  const Tensor& dqkv;  // [T, (heads + 2 kv_heads) D], every element written
  Tensor delta = {};   // scratch of the operation's own on a card; callers leave it undefined
};
void attention_backward(Context& ctx, const AttentionBackward& args);

/// Rotates query and key heads in place by position x theta^(-2i/D); the pairs are (i, i + D/2), as in Hugging Face's Llama and
/// Mixtral. `inverse` rotates back: the backward of the rotation. Su et al., "RoFormer" (2021). Cosines and sines in f64, rounded
/// to f32.
struct Rope {
  const Tensor& qkv;        // [T, (heads + 2 kv_heads) D], in place
  const Tensor& positions;  // [T] i32
  AttentionShape shape;
  float theta = 1e4F;
  bool inverse = false;
};
void rope(Context& ctx, const Rope& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void attention_forward(Context& ctx, const ops::AttentionForward& args);
void attention_backward(Context& ctx, const ops::AttentionBackward& args);
void rope(Context& ctx, const ops::Rope& args);
}  // namespace cistron::cpu

namespace cistron::cuda {
void attention_forward(Context& ctx, const ops::AttentionForward& args);
void attention_backward(Context& ctx, const ops::AttentionBackward& args);
void rope(Context& ctx, const ops::Rope& args);
}  // namespace cistron::cuda
