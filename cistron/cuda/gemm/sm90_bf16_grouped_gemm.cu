#include "cistron/cuda/gemm/sm90_bf16_mainloop.cuh"
#include "cistron/cuda/gemm/sm90_grouped_gemm.h"
#include "cistron/cuda/gemm/sm90_launch.cuh"

namespace cistron::cuda::sm90 {
namespace {

using device::Major;

/// x [R, K] times each expert's weight, along its rows (forward) or across them (dgrad).
template <Major kWeight>
void rows_times_weights(Context& ctx, const Tensor& x, const Tensor& w, const ops::Groups& groups, const Tensor& out) {
  using Mainloop = Bf16Mainloop<Major::kAlong, kWeight>;
  Problem p = problem_of<Mainloop>(x, w, out.dim(1), groups);
  p.k = narrow<int>(x.dim(1));
  if (out.dtype() == DType::kF32) return launch_store<Mainloop, StoreF32, false>(ctx, p, out);
  launch_store<Mainloop, StoreBf16, false>(ctx, p, out);
}

}  // namespace

void grouped_gemm_forward(Context& ctx, const ops::GroupedGemmForward& args) {
  rows_times_weights<Major::kAlong>(ctx, args.x, args.w, args.groups, args.out);
}

void grouped_gemm_dgrad(Context& ctx, const ops::GroupedGemmDgrad& args) {
  rows_times_weights<Major::kAcross>(ctx, args.dy, args.w, args.groups, args.out);
}

void grouped_gemm_wgrad(Context& ctx, const ops::GroupedGemmWgrad& args) {
  using Mainloop = Bf16Mainloop<Major::kAcross, Major::kAcross>;
  Problem p = problem_of<Mainloop>(args.dy, args.x, args.out.dim(2), args.groups);
  p.m = narrow<int>(args.dy.dim(1));
  p.skip_empty = args.accumulate;
  CISTRON_CHECK(!args.accumulate || args.out.dtype() == DType::kF32, "[grouped_gemm_wgrad] accumulates into f32 only");
  if (args.out.dtype() == DType::kBF16) return launch_store<Mainloop, StoreBf16, true>(ctx, p, args.out);
  if (args.accumulate) return launch_store<Mainloop, AddF32, true>(ctx, p, args.out);
  launch_store<Mainloop, StoreF32, true>(ctx, p, args.out);
}

}  // namespace cistron::cuda::sm90
