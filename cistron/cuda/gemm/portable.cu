#include "cistron/core/checked.h"
#include "cistron/cuda/gemm/dense.h"
#include "cistron/cuda/gemm/portable.h"
#include "cistron/cuda/gemm/portable_bf16.cuh"
#include "cistron/cuda/gemm/portable_f32.cuh"
#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda::portable {
namespace {

template <class Epilogue, bool kAAlong, bool kBAlong, int kStages>
void launch_staged(Context& ctx, const PortableProblem& p) {
  constexpr int kBytes = kStages * kStageBytes;
  const auto kernel = portable_bf16_kernel<Epilogue, kAAlong, kBAlong, kStages>;
  CISTRON_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<multiprocessors(ctx), kThreads, kBytes, stream(ctx)>>>(p);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

/// As many stages as the card's shared memory takes.
template <class Epilogue, bool kAAlong, bool kBAlong>
void launch_bf16(Context& ctx, const PortableProblem& p) {
  CISTRON_CHECK(p.a_pitch % 8 == 0 && p.b_pitch % 8 == 0 && p.n % 8 == 0,
                "[portable_gemm] lines of {}, {} and {} values: multiples of 8 wanted", p.a_pitch, p.b_pitch, p.n);
  const int64_t stages = shared_memory_per_block(ctx) / kStageBytes;
  if (stages >= 4) return launch_staged<Epilogue, kAAlong, kBAlong, 4>(ctx, p);
  if (stages == 3) return launch_staged<Epilogue, kAAlong, kBAlong, 3>(ctx, p);
  launch_staged<Epilogue, kAAlong, kBAlong, 2>(ctx, p);
}

template <bool kAAlong, bool kBAlong>
void launch_f32(Context& ctx, const PortableProblem& p) {
  portable_f32_kernel<kAAlong, kBAlong><<<multiprocessors(ctx), portable_f32::kThreads, 0, stream(ctx)>>>(p);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

PortableProblem problem(const Tensor& a, const Tensor& b, const Tensor& out, const ops::Groups& groups) {
  return {.a = a.raw(),
          .b = b.raw(),
          .out = out.raw(),
          .starts = groups.starts.data<int32_t>(),
          .counts = groups.counts.data<int32_t>(),
          .experts = narrow<int32_t>(groups.num_experts()),
          .n = out.dim(out.shape().rank() - 1),
          .a_pitch = a.dim(a.shape().rank() - 1),
          .b_pitch = b.dim(b.shape().rank() - 1)};
}

/// x [R, K] or dy [R, N] times each expert's weight, along its lines or across them.
template <bool kBAlong>
void rows_times_weights(Context& ctx, const Tensor& x, const Tensor& w, const ops::Groups& groups, const Tensor& out) {
  PortableProblem p = problem(x, w, out, groups);
  p.k = x.dim(1);
  p.b_expert = w.dim(1) * w.dim(2);
  if (x.dtype() == DType::kF32) return launch_f32<true, kBAlong>(ctx, p);
  if (out.dtype() == DType::kF32) return launch_bf16<StoreF32, true, kBAlong>(ctx, p);
  launch_bf16<StoreBf16, true, kBAlong>(ctx, p);
}

/// dw[e] (+)= dy^T x over the expert's rows; lines of both along the rows (transposed copies) or across.
template <bool kAlong>
void weight_gradient(Context& ctx, const Tensor& dy, const Tensor& x, const ops::Groups& groups, const GradSink& dw) {
  PortableProblem p = problem(dy, x, dw.grad, groups);
  p.m = dw.grad.dim(1);
  p.by_contraction = true;
  p.accumulate = dw.accumulate;
  if (x.dtype() == DType::kF32) return launch_f32<kAlong, kAlong>(ctx, p);
  if (dw.accumulate) return launch_bf16<AddF32, kAlong, kAlong>(ctx, p);
  launch_bf16<StoreF32, kAlong, kAlong>(ctx, p);
}

void decode(Context& ctx, const ops::MxOperand& a, const ops::MxOperand& b, const ops::MxDecoded& to) {
  cuda::mxfp8_dequantize(ctx, {.x = a, .out = to.a});
  cuda::mxfp8_dequantize(ctx, {.x = b, .out = to.b});
}

bool pieces_of_8(const DenseOperand& operand, int64_t k) {
  return reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 && operand.pitch % 8 == 0 && (!operand.along || k % 8 == 0);
}

template <class Epilogue>
void dense_rows_times_weights(Context& ctx, const PortableProblem& p, bool b_along) {
  b_along ? launch_bf16<Epilogue, true, true>(ctx, p) : launch_bf16<Epilogue, true, false>(ctx, p);
}

}  // namespace

bool dense_takes(const DenseProduct& d) {
  return d.in == DType::kBF16 && (!d.accumulate || !d.a.along) && pieces_of_8(d.a, d.k) && pieces_of_8(d.b, d.k) &&
         d.out_pitch == d.n && d.n % 8 == 0 && reinterpret_cast<uintptr_t>(d.out) % 16 == 0 &&
         (d.a.along || d.out_dtype == DType::kF32);
}

void dense(Context& ctx, const DenseProduct& d) {
  PortableProblem p{.a = d.a.data,
                    .b = d.b.data,
                    .out = d.out,
                    .experts = 1,
                    .n = d.n,
                    .k = d.k,
                    .m = d.m,
                    .a_pitch = d.a.pitch,
                    .b_pitch = d.b.pitch,
                    .by_contraction = !d.a.along,
                    .accumulate = d.accumulate};
  p.dense_rows = narrow<int32_t>(d.a.along ? d.m : d.k);
  if (!d.a.along) return d.accumulate ? launch_bf16<AddF32, false, false>(ctx, p) : launch_bf16<StoreF32, false, false>(ctx, p);
  if (d.out_dtype == DType::kF32) return dense_rows_times_weights<StoreF32>(ctx, p, d.b.along);
  dense_rows_times_weights<StoreBf16>(ctx, p, d.b.along);
}

void grouped_gemm_forward(Context& ctx, const ops::GroupedGemmForward& args) {
  rows_times_weights<true>(ctx, args.x, args.w, args.groups, args.out);
}

void grouped_gemm_dgrad(Context& ctx, const ops::GroupedGemmDgrad& args) {
  rows_times_weights<false>(ctx, args.dy, args.w, args.groups, args.out);
}

void grouped_gemm_wgrad(Context& ctx, const ops::GroupedGemmWgrad& args) {
  weight_gradient<false>(ctx, args.dy, args.x, args.groups, {args.out, args.accumulate});
}

void mxfp8_grouped_gemm(Context& ctx, const ops::Mxfp8GroupedGemm& args) {
  decode(ctx, args.x, args.w, args.decoded);
  rows_times_weights<true>(ctx, args.decoded.a, args.decoded.b, args.groups, args.out);
}

void mxfp8_grouped_wgrad(Context& ctx, const ops::Mxfp8GroupedWgrad& args) {
  decode(ctx, args.dy, args.x, args.decoded);
  weight_gradient<true>(ctx, args.decoded.a, args.decoded.b, args.groups, {args.out, args.accumulate});
}

}  // namespace cistron::cuda::portable
