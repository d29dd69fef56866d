#pragma once
// Attention of single tokens over the keys and values of earlier ones, for generation. A cache holds for each slot (a sequence
// that is being written) the heads that `qkv` holds behind its queries, num_kv_heads of keys, rotated, then num_kv_heads of
// values, and of each head all positions side by side, for a query reads them in order. Token t stands at positions[t] of the
// sequence in slots[t]. The rest is as ops/attention.h has it.
//   cache_store:       cache[slots[t], h, positions[t]] = head h of the keys and values of qkv[t]
//   attention_decode:  out[t] = sum over j <= positions[t] of softmax_j(scale q_t k_j) v_j,   k_j, v_j = cache[slots[t], head, j]
// Softmax in f32. Nothing behind positions[t] is read. On the CPU in f32 a token has the same bits whatever other tokens are
// there, for any number of threads.
#include "cistron/ops/attention.h"

namespace cistron::ops {

/// Tokens must have different places. A slot of -1 keeps nothing; other slots or positions outside the cache throw.
struct CacheStore {
  const Tensor& qkv;        // [T, (heads + 2 kv_heads) D]
  const Tensor& slots;      // [T] i32
  const Tensor& positions;  // [T] i32
  AttentionShape shape;
  const Tensor& cache;  // [slots, 2 kv_heads, capacity, D], qkv's dtype
};
void cache_store(Context& ctx, const CacheStore& args);

/// Slots or positions outside the cache throw.
struct AttentionDecode {
  const Tensor& qkv;        // [T, (heads + 2 kv_heads) D]; only the queries are read
  const Tensor& cache;      // [slots, 2 kv_heads, capacity, D], qkv's dtype
  const Tensor& slots;      // [T] i32
  const Tensor& positions;  // [T] i32
  AttentionShape shape;
  float scale = 1.0F;
  const Tensor& out;  // [T, heads D], qkv's dtype
};
void attention_decode(Context& ctx, const AttentionDecode& args);

}  // namespace cistron::ops

namespace cistron::cpu {
void cache_store(Context& ctx, const ops::CacheStore& args);
void attention_decode(Context& ctx, const ops::AttentionDecode& args);
}  // namespace cistron::cpu
