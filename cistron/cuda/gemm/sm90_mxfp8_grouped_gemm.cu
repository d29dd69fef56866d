#include "cistron/cuda/gemm/sm90_grouped_gemm.h"
#include "cistron/cuda/gemm/sm90_launch.cuh"
#include "cistron/cuda/gemm/sm90_mxfp8_mainloop.cuh"
#include "cistron/cuda/gemm/sm90_mxfp8_scaling.cuh"

namespace cistron::cuda::sm90 {
namespace {

template <class Mainloop>
void rows_times_weights(Context& ctx, const ops::Mxfp8GroupedGemm& args, int64_t sections) {
  const Problem p = problem_of<Mainloop>(args.x, args.w, args.out.dim(1), args.groups, sections);
  const Bias bias = bias_of(args.bias, args.groups, sections);
  if (args.out.dtype() == DType::kF32) return launch_store<Mainloop, StoreF32, false>(ctx, p, args.out, bias);
  launch_store<Mainloop, StoreBf16, false>(ctx, p, args.out, bias);
}

}  // namespace

void mxfp8_grouped_gemm(Context& ctx, const ops::Mxfp8GroupedGemm& args) {
  const ops::MxOperand& w = args.w;
  CISTRON_CHECK(w.depth() % 128 == 0,
                "[mxfp8_grouped_gemm] a contraction of {} values: Hopper's kernel wants a multiple of 128, or use bf16",
                w.depth());
  if (w.group == 32) {
    CISTRON_CHECK(w.block_rows == 96, "[mxfp8_grouped_gemm] weight blocks of {} rows with group 32: 96 wanted", w.block_rows);
    return rows_times_weights<Mxfp8Mainloop<Mxfp8Group32>>(ctx, args, w.sections);
  }
  CISTRON_CHECK(w.block_rows == 128 && (w.sections == 1 || w.rows() / w.sections % 128 == 0),
                "[mxfp8_grouped_gemm] weight blocks of {} rows in {} parts of {}: blocks of 128 wanted", w.block_rows, w.sections,
                w.rows());
  rows_times_weights<Mxfp8Mainloop<Mxfp8Group128>>(ctx, args, 1);
}

void mxfp8_grouped_wgrad(Context& ctx, const ops::Mxfp8GroupedWgrad& args) {
  using Mainloop = Mxfp8Mainloop<Mxfp8Group128Wgrad>;
  CISTRON_CHECK(args.dy.group == 128, "[mxfp8_grouped_wgrad] scale groups of {}: 128 wanted (group 32 contracts rows in bf16)",
                args.dy.group);
  Problem p = problem_of<Mainloop>(args.dy.elements, args.x.elements, args.out.dim(2), args.groups);
  p.m = narrow<int>(args.dy.rows());
  p.a_scales = args.dy.scales.data<uint8_t>();
  p.a_scale_pitch = narrow<int>(args.dy.scales.dim(1));
  p.b_scales = args.x.scales.data<uint8_t>();
  p.b_scale_pitch = narrow<int>(args.x.scales.dim(1));
  p.skip_empty = args.accumulate;
  if (args.accumulate) return launch_store<Mainloop, AddF32, true>(ctx, p, args.out);
  launch_store<Mainloop, StoreF32, true>(ctx, p, args.out);
}

}  // namespace cistron::cuda::sm90
