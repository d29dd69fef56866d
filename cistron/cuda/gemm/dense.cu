// Which kernel runs a dense product. Measured at the shapes of four models (bench/results/h200.md): with few columns in f32 ours,
// otherwise cuBLASLt, which is 1 to 9% faster than our wgmma kernel for activations and up to 3 times for the gradients of small
// weights, whose contraction it cuts into parts. Where it is not found, ours. No device code; `.cu` since it needs nvcc's build.
#include "cistron/cuda/gemm/cublaslt.h"
#include "cistron/cuda/gemm/dense.h"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/matmul.h"

namespace cistron::cuda {
namespace {

/// A contraction over nothing.
void zero(Context& ctx, const DenseProduct& p) {
  if (p.accumulate) return;
  const int64_t width = size_of(p.out_dtype);
  CISTRON_CUDA_CHECK(cudaMemset2DAsync(p.out, static_cast<size_t>(p.out_pitch * width), 0, static_cast<size_t>(p.n * width),
                                       static_cast<size_t>(p.m), stream(ctx)));
}

DenseProduct product_into(const Tensor& out, const Tensor& operand, bool accumulate, const Tensor& workspace) {
  return {.in = operand.dtype(),
          .out = out.raw(),
          .out_dtype = out.dtype(),
          .out_pitch = out.dim(1),
          .m = out.dim(0),
          .n = out.dim(1),
          .accumulate = accumulate,
          .workspace = workspace.raw()};
}

DenseOperand operand(const Tensor& x, bool along) { return {.data = x.raw(), .pitch = x.dim(1), .along = along}; }

}  // namespace

void dense_product(Context& ctx, const DenseProduct& p) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) return zero(ctx, p);
  if (skinny_takes(p)) return skinny_dense(ctx, p);
  if (cublaslt::dense(ctx, p)) return;
  const int capability = compute_capability(ctx);
  if (capability == 90 && sm90::dense_takes(p)) return sm90::dense(ctx, p);
  if (capability != 90 && portable::dense_takes(p)) return portable::dense(ctx, p);
  simt_dense(ctx, p);
}

void matmul_forward(Context& ctx, const ops::MatmulForward& args) {
  const DeviceGuard guard(ctx);
  DenseProduct p = product_into(args.out, args.x, args.accumulate, args.workspace);
  p.a = operand(args.x, true);
  p.b = operand(args.w, true);
  p.k = args.x.dim(1);
  dense_product(ctx, p);
}

void matmul_dgrad(Context& ctx, const ops::MatmulDgrad& args) {
  const DeviceGuard guard(ctx);
  DenseProduct p = product_into(args.out, args.dy, args.accumulate, args.workspace);
  p.a = operand(args.dy, true);
  p.b = operand(args.w, false);
  p.k = args.dy.dim(1);
  dense_product(ctx, p);
}

void matmul_wgrad(Context& ctx, const ops::MatmulWgrad& args) {
  const DeviceGuard guard(ctx);
  DenseProduct p = product_into(args.out, args.dy, args.accumulate, args.workspace);
  p.a = operand(args.dy, false);
  p.b = operand(args.x, false);
  p.k = args.x.dim(0);
  dense_product(ctx, p);
}

}  // namespace cistron::cuda
