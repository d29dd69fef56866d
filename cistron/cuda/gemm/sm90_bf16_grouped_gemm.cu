#include "cistron/cuda/gemm/dense.h"
#include "cistron/cuda/gemm/sm90_bf16_mainloop.cuh"
#include "cistron/cuda/gemm/sm90_grouped_gemm.h"
#include "cistron/cuda/gemm/sm90_launch.cuh"

namespace cistron::cuda::sm90 {
namespace {

using device::Major;

/// x [R, K] times each expert's weight, along its rows (forward) or across them (dgrad).
template <Major kWeight>
void rows_times_weights(Context& ctx, const Tensor& x, const Tensor& w, const ops::Groups& groups, const Tensor& out,
                        const Bias& bias = {}) {
  using Mainloop = Bf16Mainloop<Major::kAlong, kWeight>;
  Problem p = problem_of<Mainloop>(x, w, out.dim(1), groups);
  p.k = narrow<int>(x.dim(1));
  if (out.dtype() == DType::kF32) return launch_store<Mainloop, StoreF32, false>(ctx, p, out, bias);
  launch_store<Mainloop, StoreBf16, false>(ctx, p, out, bias);
}

/// `lines` of an operand by the contraction, in boxes of kRows lines.
template <Major kMajor, int kRows>
CUtensorMap dense_map(const DenseOperand& operand, int64_t lines, int64_t k) {
  return make_tensor_map({.data = const_cast<void*>(operand.data),
                          .dtype = DType::kBF16,
                          .columns = operand.along ? k : lines,
                          .rows = operand.along ? lines : k,
                          .box_rows = kBoxRows<kMajor, kRows>,
                          .row_pitch = operand.pitch,
                          .outer_pitch = operand.pitch});
}

template <class Mainloop>
Problem dense_problem(const DenseProduct& d) {
  Problem p{};
  p.a = dense_map<Mainloop::kA, kTileM>(d.a, d.m, d.k);
  p.b = dense_map<Mainloop::kB, Mainloop::kTileN>(d.b, d.n, d.k);
  p.b_step = kBoxRows<Mainloop::kB, Mainloop::kTileN>;
  p.experts = 1;
  p.sections = 1;
  p.m = narrow<int>(d.m);
  p.n = narrow<int>(d.n);
  p.k = narrow<int>(d.k);
  return p;
}

template <class Mainloop, class Format, bool kRagged>
void launch_dense(Context& ctx, const Problem& p, const DenseProduct& d) {
  const CUtensorMap out = make_tensor_map({.data = d.out,
                                           .dtype = d.out_dtype,
                                           .columns = d.n,
                                           .rows = d.m,
                                           .box_rows = kPieceRows,
                                           .row_pitch = d.out_pitch,
                                           .outer_pitch = d.out_pitch});
  launch<Mainloop, Store<Format, Mainloop::kTileN, Mainloop::kBuffers>, kRagged>(ctx, p, {out, kRagged, {}});
}

template <Major kB>
void dense_rows_times_weights(Context& ctx, const DenseProduct& d) {
  using Mainloop = Bf16Mainloop<Major::kAlong, kB>;
  Problem p = dense_problem<Mainloop>(d);
  p.dense_rows = p.m;
  d.out_dtype == DType::kF32 ? launch_dense<Mainloop, StoreF32, false>(ctx, p, d)
                             : launch_dense<Mainloop, StoreBf16, false>(ctx, p, d);
}

void dense_weight_gradient(Context& ctx, const DenseProduct& d) {
  using Mainloop = Bf16Mainloop<Major::kAcross, Major::kAcross>;
  Problem p = dense_problem<Mainloop>(d);
  p.dense_rows = p.k;
  if (d.accumulate) return launch_dense<Mainloop, AddF32, true>(ctx, p, d);
  d.out_dtype == DType::kF32 ? launch_dense<Mainloop, StoreF32, true>(ctx, p, d)
                             : launch_dense<Mainloop, StoreBf16, true>(ctx, p, d);
}

bool in_16_bytes(const void* data, int64_t pitch, DType dtype) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && pitch * size_of(dtype) % 16 == 0;
}

}  // namespace

bool dense_takes(const DenseProduct& d) {
  return d.in == DType::kBF16 && (!d.accumulate || !d.a.along) && in_16_bytes(d.a.data, d.a.pitch, d.in) &&
         in_16_bytes(d.b.data, d.b.pitch, d.in) && in_16_bytes(d.out, d.out_pitch, d.out_dtype);
}

void dense(Context& ctx, const DenseProduct& d) {
  if (!d.a.along) return dense_weight_gradient(ctx, d);
  d.b.along ? dense_rows_times_weights<Major::kAlong>(ctx, d) : dense_rows_times_weights<Major::kAcross>(ctx, d);
}

void grouped_gemm_forward(Context& ctx, const ops::GroupedGemmForward& args) {
  rows_times_weights<Major::kAlong>(ctx, args.x, args.w, args.groups, args.out, bias_of(args.bias, args.groups));
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
