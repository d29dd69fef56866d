#include "cistron/ops/attention.h"

#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {

void check_qkv(const char* op, const Tensor& qkv, const AttentionShape& s) {
  check_float(op, "qkv", qkv, 2);
  CISTRON_CHECK(s.num_heads > 0 && s.num_kv_heads > 0 && s.head_dim > 0 && s.num_heads % s.num_kv_heads == 0,
                "[{}] {} heads cannot share {} key/value heads of {} values", op, s.num_heads, s.num_kv_heads, s.head_dim);
  check_tensor(op, "qkv", qkv, {qkv.dim(0), s.qkv_width()}, qkv.dtype());
}

namespace {

void check_outputs(const char* op, const Tensor& out, const Tensor& lse, const Tensor& qkv, const AttentionShape& s) {
  check_tensor(op, "out", out, {qkv.dim(0), s.out_width()}, qkv.dtype());
  check_tensor(op, "lse", lse, {s.num_heads, qkv.dim(0)}, DType::kF32);
}

void check_sequences(const char* op, const Tensor& cu_seqlens, int64_t tokens) {
  CISTRON_CHECK(cu_seqlens.shape().rank() == 1 && cu_seqlens.dim(0) > 0, "[{}] cu_seqlens is {}, wanted [sequences + 1]", op,
                to_string(cu_seqlens.shape()));
  check_tensor(op, "cu_seqlens", cu_seqlens, {cu_seqlens.dim(0)}, DType::kI32);
  if (!cu_seqlens.device().is_cpu()) return;
  const auto ends = cu_seqlens.span<int32_t>();
  CISTRON_CHECK(ends.front() == 0 && ends.back() == tokens, "[{}] cu_seqlens goes from {} to {}, wanted 0 to {}", op,
                ends.front(), ends.back(), tokens);
  for (size_t s = 1; s < ends.size(); ++s)
    CISTRON_CHECK(ends[s - 1] <= ends[s], "[{}] cu_seqlens falls at {}: {} after {}", op, s, ends[s], ends[s - 1]);
}

}  // namespace

void attention_forward(Context& ctx, const AttentionForward& args) {
  constexpr auto kOp = "attention_forward";
  check_qkv(kOp, args.qkv, args.shape);
  check_outputs(kOp, args.out, args.lse, args.qkv, args.shape);
  check_sequences(kOp, args.cu_seqlens, args.qkv.dim(0));
  dispatch(kOp, ctx, args, cpu::attention_forward, cuda::attention_forward);
}

void attention_backward(Context& ctx, const AttentionBackward& args) {
  constexpr auto kOp = "attention_backward";
  check_qkv(kOp, args.qkv, args.shape);
  check_outputs(kOp, args.out, args.lse, args.qkv, args.shape);
  check_tensor(kOp, "dout", args.dout, args.out.shape(), args.qkv.dtype());
  check_tensor(kOp, "dqkv", args.dqkv, args.qkv.shape(), args.qkv.dtype());
  check_sequences(kOp, args.cu_seqlens, args.qkv.dim(0));
  AttentionBackward with_scratch = args;
  if (ctx.target().is_cuda()) with_scratch.delta = ctx.empty(args.lse.shape(), DType::kF32);
  dispatch(kOp, ctx, with_scratch, cpu::attention_backward, cuda::attention_backward);
}

void rope(Context& ctx, const Rope& args) {
  constexpr auto kOp = "rope";
  check_qkv(kOp, args.qkv, args.shape);
  check_tensor(kOp, "positions", args.positions, {args.qkv.dim(0)}, DType::kI32);
  CISTRON_CHECK(args.shape.head_dim % 2 == 0, "[{}] rotates pairs: head_dim {} is odd", kOp, args.shape.head_dim);
  dispatch(kOp, ctx, args, cpu::rope, cuda::rope);
}

}  // namespace cistron::ops
