#include "cistron/cuda/gemm/sm90_bf16_mainloop.cuh"
#include "cistron/cuda/gemm/sm90_grouped_swiglu.h"
#include "cistron/cuda/gemm/sm90_launch.cuh"
#include "cistron/cuda/gemm/sm90_swiglu_epilogue.cuh"

namespace cistron::cuda::sm90 {

using device::Major;

// A tile's B is 128 rows of gate and the same 128 of up: boxes `width` rows apart. So tiles are counted along F, in one section.
// Past F gate's box runs on into up's rows, up's into zeros: no store reaches those columns.
void grouped_swiglu_forward(Context& ctx, const ops::GroupedSwigluForward& args) {
  using Mainloop = Bf16Mainloop<Major::kAlong, Major::kAlong>;
  const int64_t width = args.act.dim(1);
  Problem p = problem_of<Mainloop>(args.x, args.w, width, args.groups);
  p.k = narrow<int>(args.x.dim(1));
  p.b_step = narrow<int>(width);
  launch<Mainloop, SwigluForward, false>(ctx, p,
                                         {packed_output(args.gate_up), output_map(args.act, 1), args.groups.weight.data<float>(),
                                          bias_of({.values = args.bias}, args.groups, 2)});
}

void grouped_swiglu_backward(Context& ctx, const ops::GroupedSwigluBackward& args) {
  using Mainloop = Bf16Mainloop<Major::kAlong, Major::kAcross, 3>;  // the fourth stage's room is the epilogue's
  Problem p = problem_of<Mainloop>(args.dy, args.w, args.act.dim(1), args.groups);
  p.k = narrow<int>(args.dy.dim(1));
  static_assert(SwigluBackward::kTileColumns == ops::kSwigluTile);
  launch<Mainloop, SwigluBackward, false>(
      ctx, p,
      {output_map(args.gate_up, 2), output_map(args.dgate_up, 2), output_map(args.act, 1), args.groups.weight.data<float>(),
       args.partials.data<float>(), narrow<int>(args.partials.dim(1))});
}

}  // namespace cistron::cuda::sm90
