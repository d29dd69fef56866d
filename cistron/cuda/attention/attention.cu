// Which kernels run attention: by dtype and shape, on the context's card. No device code; `.cu` since it needs nvcc's build.
#include "cistron/cuda/attention/flash.h"
#include "cistron/cuda/attention/sm90_flash.h"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {
namespace {

void check(const char* op, const ops::AttentionShape& shape, float scale) {
  CISTRON_CHECK(shape.head_dim <= 256, "[{}] heads of {} values: at most 256 on a card", op, shape.head_dim);
  CISTRON_CHECK(scale > 0, "[{}] scale {}: positive wanted", op, scale);
}

bool hopper_takes(const Context& ctx, DType dtype, const ops::AttentionShape& shape) {
  return flash::sm90::takes(dtype, shape) && compute_capability(ctx) == 90;
}

}  // namespace

void attention_forward(Context& ctx, const ops::AttentionForward& args) {
  check("attention_forward", args.shape, args.scale);
  if (args.qkv.dim(0) == 0) return;
  const DeviceGuard guard(ctx);
  if (hopper_takes(ctx, args.qkv.dtype(), args.shape)) return flash::sm90::forward(ctx, args);
  flash::mma_takes(ctx, args.qkv.dtype(), args.shape) ? flash::mma_forward(ctx, args) : flash::simt_forward(ctx, args);
}

void attention_backward(Context& ctx, const ops::AttentionBackward& args) {
  check("attention_backward", args.shape, args.scale);
  if (args.qkv.dim(0) == 0) return;
  const DeviceGuard guard(ctx);
  flash::delta(ctx, args);
  if (hopper_takes(ctx, args.qkv.dtype(), args.shape)) return flash::sm90::backward(ctx, args);
  flash::mma_takes(ctx, args.qkv.dtype(), args.shape) ? flash::mma_backward(ctx, args) : flash::simt_backward(ctx, args);
}

}  // namespace cistron::cuda
