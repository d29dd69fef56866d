#include "cistron/core/checked.h"
#include "cistron/cuda/quant/mxfp8_dequantize.cuh"
#include "cistron/cuda/quant/mxfp8_quantize.cuh"
#include "cistron/cuda/quant/mxfp8_quantize_group32.cuh"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/mxfp8.h"

namespace cistron::cuda {
namespace {

template <class T>
void quantize(Context& ctx, const ops::Mxfp8Quantize& args) {
  const bool gathers = args.source_row.defined();
  QuantArgs kernel{.x = args.x.raw(),
                   .rows = gathers ? args.source_row.dim(0) : args.x.dim(0),
                   .width = args.x.dim(1),
                   .row_wise = quant_copy(args.out.rows),
                   .turned = quant_copy(args.out.columns)};
  const auto tiles = narrow<uint32_t>(ceil_div(kernel.width, kQuantTile));
  // A gather goes down one column of tiles after the other, so that what it reads again is in the L2 cache.
  const dim3 grid(gathers ? 1 : tiles, narrow<uint32_t>(ceil_div(kernel.rows, kQuantTile)), gathers ? tiles : 1);
  CISTRON_CHECK(grid.y < 65536 && grid.z < 65536, "[mxfp8_quantize] [{}, {}] is more than one launch takes", kernel.rows,
                kernel.width);
  if (tiles * grid.y == 0) return;
  if (gathers) kernel.source_row = args.source_row.data<int32_t>();
  CISTRON_CHECK(reinterpret_cast<uintptr_t>(kernel.source_row) % sizeof(int4) == 0, "[mxfp8_quantize] source_row begins at {}",
                fmt::ptr(kernel.source_row));
  if (args.starts.defined()) kernel.end = args.starts.data<int32_t>() + args.starts.dim(0) - 1;
  if (args.rstd.defined()) kernel.rstd = args.rstd.data<float>(), kernel.norm_weight = args.norm_weight.data<float>();
  const int64_t group = args.out.rows.defined() ? args.out.rows.group : args.out.columns.group;
  const auto run = args.rstd.defined() ? mxfp8_quantize_kernel<T, 128, true>
                   : group == 128      ? mxfp8_quantize_kernel<T, 128>
                                       : mxfp8_quantize_kernel<T, 32>;
  run<<<grid, kQuantThreads, 0, stream(ctx)>>>(kernel);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

template <class T>
void quantize_weights_128(Context& ctx, const ops::Mxfp8QuantizeWeights& args) {
  const int64_t sections = args.out.rows.defined() ? args.out.rows.sections : 1;
  CISTRON_CHECK(args.w.dim(1) % (sections * kQuantTile) == 0 && args.w.dim(2) % kQuantTile == 0,
                "[mxfp8_quantize_weights] {} in {} sections: multiples of 128 wanted", to_string(args.w.shape()), sections);
  const QuantArgs kernel{.x = args.w.raw(),
                         .rows = args.w.dim(1),
                         .width = args.w.dim(2),
                         .row_wise = quant_copy(args.out.rows),
                         .turned = quant_copy(args.out.columns)};
  const dim3 grid(narrow<uint32_t>(kernel.width / kQuantTile), narrow<uint32_t>(kernel.rows / kQuantTile),
                  narrow<uint32_t>(args.w.dim(0)));
  if (grid.x * grid.y * grid.z == 0) return;
  mxfp8_quantize_weights_kernel<T><<<grid, kQuantThreads, 0, stream(ctx)>>>(kernel);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

template <class T>
void quantize_weights_32(Context& ctx, const Tensor& w, const ops::MxOperand& out, bool turned) {
  if (!out.defined() || w.numel() == 0) return;
  const int64_t section_rows = out.rows() / out.sections;
  CISTRON_CHECK(w.dim(2) % 8 == 0 && section_rows % 8 == 0, "[mxfp8_quantize_weights] {} in {} sections: multiples of 8 wanted",
                to_string(w.shape()), out.sections);
  const QuantBlocks kernel{.x = w.raw(),
                           .elements = out.elements.data<uint8_t>(),
                           .scales = out.scales.data<uint8_t>(),
                           .rows = out.rows(),
                           .depth = out.depth(),
                           .section_rows = section_rows,
                           .section_blocks = narrow<int>(ceil_div(section_rows, kBlockRows)),
                           .turned = turned};
  const dim3 grid(narrow<uint32_t>(ceil_div(out.depth(), kBlockDepth)), narrow<uint32_t>(out.row_blocks()),
                  narrow<uint32_t>(w.dim(0)));
  mxfp8_quantize_blocks_kernel<T><<<grid, kBlockThreads, 0, stream(ctx)>>>(kernel);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

template <class T>
void quantize_weights(Context& ctx, const ops::Mxfp8QuantizeWeights& args) {
  const int64_t group = args.out.rows.defined() ? args.out.rows.group : args.out.columns.group;
  if (group == 128) return quantize_weights_128<T>(ctx, args);
  quantize_weights_32<T>(ctx, args.w, args.out.rows, false);
  quantize_weights_32<T>(ctx, args.w, args.out.columns, true);
}

template <class T>
void dequantize(Context& ctx, const ops::MxOperand& x, T* out) {
  const MxView view{.elements = x.elements.data<uint8_t>(),
                    .scales = x.scales.data<uint8_t>(),
                    .rows = x.rows(),
                    .depth = x.depth(),
                    .group = x.group,
                    .block_rows = x.block_rows,
                    .section_rows = x.is_weight() ? x.rows() / x.sections : 0,
                    .row_blocks = x.is_weight() ? x.row_blocks() : 0,
                    .scale_pitch = x.is_weight() ? 0 : x.scales.dim(1)};
  const int64_t values = x.elements.numel();
  if (values == 0) return;
  mxfp8_dequantize_kernel<T>
      <<<narrow<uint32_t>(ceil_div(values, 256 * 16)), 256, 0, stream(ctx)>>>(view, values / x.depth(), out);
  CISTRON_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void mxfp8_quantize(Context& ctx, const ops::Mxfp8Quantize& args) {
  const DeviceGuard guard(ctx);
  args.x.dtype() == DType::kF32 ? quantize<float>(ctx, args) : quantize<__nv_bfloat16>(ctx, args);
}

void mxfp8_quantize_weights(Context& ctx, const ops::Mxfp8QuantizeWeights& args) {
  const DeviceGuard guard(ctx);
  args.w.dtype() == DType::kF32 ? quantize_weights<float>(ctx, args) : quantize_weights<__nv_bfloat16>(ctx, args);
}

void mxfp8_dequantize(Context& ctx, const ops::Mxfp8Dequantize& args) {
  const DeviceGuard guard(ctx);
  if (args.out.dtype() == DType::kF32) return dequantize(ctx, args.x, args.out.data<float>());
  dequantize(ctx, args.x, static_cast<__nv_bfloat16*>(args.out.raw()));
}

}  // namespace cistron::cuda
