#pragma once
// Where an operation goes after its arguments were checked: to the device's backend, or nowhere on the meta device, whose
// tensors have shapes and no bytes. The linker resolves the backends' functions.
#include "cistron/core/context.h"
#include "cistron/ops/cost.h"

namespace cistron::ops {

[[noreturn]] void throw_no_backend(const char* op, const Device& device);

template <class Args>
void run_timed(const char* op, Context& ctx, const Args& args, void (*run)(Context&, const Args&)) {
  if (ctx.timer == nullptr) return run(ctx, args);
  ctx.timer->begin();
  run(ctx, args);
  ctx.timer->end(op, cost_of(args));
}

template <class Args>
void dispatch(const char* op, Context& ctx, const Args& args, void (*cpu)(Context&, const Args&)) {
  if (ctx.device.is_meta()) return;
  if (!ctx.device.is_cpu()) throw_no_backend(op, ctx.device);
  run_timed(op, ctx, args, cpu);
}

/// For operations that CUDA has too; without nvcc, `no_cuda/` defines the function and throws.
template <class Args>
void dispatch(const char* op, Context& ctx, const Args& args, void (*cpu)(Context&, const Args&),
              void (*cuda)(Context&, const Args&)) {
  if (ctx.device.is_cuda()) return run_timed(op, ctx, args, cuda);
  dispatch(op, ctx, args, cpu);
}

}  // namespace cistron::ops
