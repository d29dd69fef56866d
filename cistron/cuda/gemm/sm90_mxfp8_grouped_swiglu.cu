#include "cistron/cuda/gemm/sm90_launch.cuh"
#include "cistron/cuda/gemm/sm90_mxfp8_grouped_swiglu.h"
#include "cistron/cuda/gemm/sm90_mxfp8_mainloop.cuh"
#include "cistron/cuda/gemm/sm90_mxfp8_scaling.cuh"
#include "cistron/cuda/gemm/sm90_mxfp8_swiglu_epilogue.cuh"

namespace cistron::cuda::sm90 {

// A tile's B is 128 rows of gate and the same 128 of up, a scale each: boxes `width` rows apart. So tiles are counted along F, in
// one section, though w has two.
void mxfp8_grouped_swiglu_forward(Context& ctx, const ops::Mxfp8GroupedSwigluForward& args) {
  using Mainloop = Mxfp8Mainloop<Mxfp8Group128>;
  const int64_t width = args.act.depth();
  Problem p = problem_of<Mainloop>(args.x, args.w, width, args.groups, 1);
  p.b_step = narrow<int>(width);
  launch<Mainloop, Mxfp8SwigluForward, false>(
      ctx, p,
      {packed_output(args.gate_up), output_map(args.act.elements, 1), args.groups.weight.data<float>(),
       args.act.scales.data<uint8_t>(), narrow<int>(args.act.scales.dim(1)), bias_of({.values = args.bias}, args.groups, 2)});
}

}  // namespace cistron::cuda::sm90
