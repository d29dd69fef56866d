#include "cistron/ops/attention_decode.h"

#include "cistron/core/error.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {

namespace {

struct Places {
  const Tensor& cache;
  const Tensor& slots;
  const Tensor& positions;
};

void check_places(const char* op, const Places& places, const Tensor& qkv, const AttentionShape& shape, int32_t lowest_slot) {
  const auto& [cache, slots, positions] = places;
  CISTRON_CHECK(cache.shape().rank() == 4, "[{}] cache is {}, wanted [slots, 2 kv_heads, capacity, D]", op,
                to_string(cache.shape()));
  check_tensor(op, "cache", cache, {cache.dim(0), 2 * shape.num_kv_heads, cache.dim(2), shape.head_dim}, qkv.dtype());
  check_tensor(op, "slots", slots, {qkv.dim(0)}, DType::kI32);
  check_tensor(op, "positions", positions, {qkv.dim(0)}, DType::kI32);
  if (!slots.device().is_cpu() || !positions.device().is_cpu()) return;
  for (int64_t t = 0; t < slots.dim(0); ++t) {
    const int32_t slot = slots.data<int32_t>()[t], position = positions.data<int32_t>()[t];
    if (slot < 0 && slot >= lowest_slot) continue;
    CISTRON_CHECK(slot >= 0 && slot < cache.dim(0) && position >= 0 && position < cache.dim(2),
                  "[{}] token {} is at position {} of slot {}; the cache has {} slots of {}", op, t, position, slot, cache.dim(0),
                  cache.dim(2));
  }
}

}  // namespace

void cache_store(Context& ctx, const CacheStore& args) {
  constexpr auto kOp = "cache_store";
  check_qkv(kOp, args.qkv, args.shape);
  check_places(kOp, {args.cache, args.slots, args.positions}, args.qkv, args.shape, /*lowest_slot=*/-1);
  dispatch(kOp, ctx, args, cpu::cache_store);
}

void attention_decode(Context& ctx, const AttentionDecode& args) {
  constexpr auto kOp = "attention_decode";
  check_qkv(kOp, args.qkv, args.shape);
  check_places(kOp, {args.cache, args.slots, args.positions}, args.qkv, args.shape, /*lowest_slot=*/0);
  check_tensor(kOp, "out", args.out, {args.qkv.dim(0), args.shape.out_width()}, args.qkv.dtype());
  dispatch(kOp, ctx, args, cpu::attention_decode);
}

}  // namespace cistron::ops
