#pragma once
// Launches a grouped product on Hopper.
#include "cistron/core/checked.h"
#include "cistron/cuda/gemm/sm90_grouped_gemm.cuh"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/cuda/runtime/tensor_map.h"
#include "cistron/ops/grouped_bias.h"
#include "cistron/ops/mxfp8.h"

namespace cistron::cuda::sm90 {

/// A tensor of rank 2 or 3 in boxes of 128 bytes of `box_rows` rows.
inline TensorMapShape map_shape(const Tensor& t, int box_rows) {
  const int rank = t.shape().rank();
  return {.data = t.raw(),
          .dtype = t.dtype(),
          .columns = t.dim(rank - 1),
          .rows = t.dim(rank - 2),
          .outermost = rank == 3 ? t.dim(0) : 1,
          .box_rows = box_rows};
}

/// out [R, N] as [sections, R, N / sections], so that nothing is stored past a section's end; in an epilogue's boxes. What an
/// epilogue loads has the same map.
inline CUtensorMap output_map(const Tensor& out, int64_t sections) {
  TensorMapShape shape = map_shape(out, kPieceRows);
  if (sections > 1) {
    shape.row_pitch = shape.columns;
    shape.columns = shape.outer_pitch = div_exact(shape.columns, sections);
    shape.outermost = sections;
  }
  return make_tensor_map(shape);
}

inline Bias bias_of(const ops::ExpertBias& bias, const ops::Groups& groups, int64_t sections = 1) {
  if (!bias.values.defined()) return {};
  return {bias.values.data<float>(), bias.scaled ? groups.weight.data<float>() : nullptr, narrow<int>(sections),
          narrow<int>(div_exact(bias.values.dim(1), sections))};
}

/// `n`: columns of out. The caller sets k, or m where the contraction is by expert.
template <class Mainloop>
Problem problem_of(const Tensor& a, const Tensor& b, int64_t n, const ops::Groups& groups, int64_t sections = 1) {
  Problem p{};
  p.a = make_tensor_map(map_shape(a, kBoxRows<Mainloop::kA, kTileM>));
  p.b = make_tensor_map(map_shape(b, kBoxRows<Mainloop::kB, Mainloop::kTileN>));
  p.b_step = kBoxRows<Mainloop::kB, Mainloop::kTileN>;
  static_cast<void>(narrow<int>(groups.max_rows()));  // rows are counted in 32 bits
  p.starts = groups.starts.data<int32_t>();
  p.counts = groups.counts.data<int32_t>();
  p.experts = narrow<int>(groups.num_experts());
  p.sections = narrow<int>(sections);
  p.n = narrow<int>(div_exact(n, sections));
  return p;
}

/// Rows by expert times weights, in MXFP8.
template <class Mainloop>
Problem problem_of(const ops::MxOperand& x, const ops::MxOperand& w, int64_t n, const ops::Groups& groups, int64_t sections) {
  Problem p = problem_of<Mainloop>(x.elements, w.elements, n, groups, sections);
  p.k = narrow<int>(x.depth());
  p.a_scales = x.scales.data<uint8_t>();
  p.a_scale_pitch = narrow<int>(x.scales.dim(1));
  p.b_scales = w.scales.data<uint8_t>();
  p.b_scale_pitch = narrow<int>(w.num_groups());
  p.b_scale_blocks = narrow<int>(w.row_blocks());
  return p;
}

/// As many blocks as run at once; they walk the tiles, whose number only the card knows.
template <class Mainloop, class Epilogue, bool kRagged>
void launch(Context& ctx, const Problem& p, const typename Epilogue::Args& args) {
  const auto kernel = grouped_gemm_kernel<Mainloop, Epilogue, kRagged>;
  constexpr int64_t kTable = Stages<Mainloop, Epilogue>::kTableAt;
  const int64_t bytes = kTable + int64_t{4} * p.experts;
  const int64_t limit = shared_memory_per_block(ctx);
  CISTRON_CHECK(bytes <= limit, "[grouped_gemm] {} experts on one device: at most {}", p.experts, (limit - kTable) / 4);
  const int blocks = multiprocessors(ctx) / kClusterSize * kClusterSize;
  CISTRON_CHECK(blocks > 0, "[grouped_gemm] an sm_budget of {}: at least {} wanted", ctx.sm_budget, kClusterSize);
  CISTRON_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  kernel<<<blocks, kThreads, bytes, stream(ctx)>>>(p, args);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

/// The same with an epilogue that stores the product as it is.
template <class Mainloop, class Format, bool kRagged>
void launch_store(Context& ctx, const Problem& p, const Tensor& out, const Bias& bias = {}) {
  launch<Mainloop, Store<Format, Mainloop::kTileN, Mainloop::kBuffers>, kRagged>(ctx, p,
                                                                                 {output_map(out, p.sections), kRagged, bias});
}

}  // namespace cistron::cuda::sm90
