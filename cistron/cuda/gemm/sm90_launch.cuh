#pragma once
// Launches a grouped product on Hopper.
#include "cistron/core/checked.h"
#include "cistron/cuda/gemm/sm90_grouped_gemm.cuh"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/cuda/runtime/tensor_map.h"
#include "cistron/ops/groups.h"

namespace cistron::cuda::sm90 {

/// As boxes of 64 rows x 128 bytes of a tensor of rank 2 or 3.
inline CUtensorMap operand_map(const Tensor& t, int box_rows = 64) {
  const int rank = t.shape().rank();
  return make_tensor_map({.data = t.raw(),
                          .dtype = t.dtype(),
                          .columns = t.dim(rank - 1),
                          .rows = t.dim(rank - 2),
                          .outermost = rank == 3 ? t.dim(0) : 1,
                          .box_rows = box_rows});
}

inline Problem problem_of(const Tensor& a, const Tensor& b, const Tensor& out, const ops::Groups& groups) {
  Problem p{};
  p.a = operand_map(a);
  p.b = operand_map(b);
  p.out = operand_map(out, kPieceRows);
  p.starts = groups.starts.data<int32_t>();
  p.counts = groups.counts.data<int32_t>();
  p.experts = narrow<int>(groups.num_experts());
  p.n = narrow<int>(out.dim(out.shape().rank() - 1));
  return p;
}

template <class Mainloop, class Epilogue, bool kRagged>
void launch(Context& ctx, const Problem& p) {
  const auto kernel = grouped_gemm_kernel<Mainloop, Epilogue, kRagged>;
  const int64_t bytes = Stages<Mainloop>::kTable + int64_t{4} * p.experts;
  const int64_t limit = shared_memory_per_block(ctx);
  CISTRON_CHECK(bytes <= limit, "[grouped_gemm] {} experts on one device: at most {}", p.experts, (limit - Stages<Mainloop>::kTable) / 4);
  const int blocks = multiprocessors(ctx) / kClusterSize * kClusterSize;
  CISTRON_CHECK(blocks > 0, "[grouped_gemm] an sm_budget of {}: at least {} wanted", ctx.sm_budget, kClusterSize);
  CISTRON_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  kernel<<<blocks, kThreads, bytes, stream(ctx)>>>(p);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace cistron::cuda::sm90
