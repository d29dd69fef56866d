// The definition, step by step: what a card does in one launch or two.
#include "cistron/ops/mxfp8_grouped_swiglu.h"

#include <cstring>

#include "cistron/cpu/fast/row_tiles.h"
#include "cistron/ops/swiglu.h"

namespace cistron::cpu {
namespace {

/// copy(a tile's rows in `rows`, the same in `packed`, their bytes), in parallel.
template <class F>
void for_packed_tiles(Context& ctx, const ops::Groups& groups, const Tensor& rows, const Tensor& packed, F&& copy) {
  const auto tiles = row_tiles(groups);
  const int64_t width = packed.dim(1);
  ctx.parallel_for(std::ssize(tiles), [&](int64_t i) {
    const RowTile& tile = tiles[static_cast<size_t>(i)];
    copy(offset(rows, tile.rows.begin * width), offset(packed, tile.packed * width),
         static_cast<size_t>(tile.rows.count * width * size_of(packed.dtype())));
  });
}

}  // namespace

void mxfp8_grouped_swiglu_forward(Context& ctx, const ops::Mxfp8GroupedSwigluForward& args) {
  mxfp8_grouped_gemm(ctx, {.x = args.x,
                           .w = args.w,
                           .groups = args.groups,
                           .out = args.gate_up_rows,
                           .bias = {.values = args.bias},
                           .decoded = args.product});
  for_packed_tiles(ctx, args.groups, args.gate_up_rows, args.gate_up,
                   [](const void* row, void* packed, size_t bytes) { std::memcpy(packed, row, bytes); });
  scaled_swiglu_forward(ctx, {.gate_up = args.gate_up_rows, .groups = args.groups, .out = args.values});
  const ops::MxTensor act{.rows = args.act, .columns = {}};
  mxfp8_quantize(ctx, {.x = args.values, .out = act, .starts = args.groups.starts});
}

void mxfp8_grouped_swiglu_backward(Context& ctx, const ops::Mxfp8GroupedSwigluBackward& args) {
  mxfp8_grouped_gemm(ctx, {.x = args.dy, .w = args.w, .groups = args.groups, .out = args.d, .decoded = args.product});
  for_packed_tiles(ctx, args.groups, args.gate_up_rows, args.gate_up,
                   [](void* row, const void* packed, size_t bytes) { std::memcpy(row, packed, bytes); });
  scaled_swiglu_backward(ctx, {args.d, args.gate_up_rows, args.groups, args.values, args.dweight});
  if (args.dbias.grad.defined())
    grouped_bias_backward(ctx, {.dy = args.values, .bias = {}, .groups = args.groups, .dbias = args.dbias});
  mxfp8_quantize(ctx, {.x = args.values, .out = args.dgate_up, .starts = args.groups.starts});
  scaled_swiglu_forward(ctx, {.gate_up = args.gate_up_rows, .groups = args.groups, .out = args.d});
  const ops::MxTensor act{.rows = {}, .columns = args.act};
  mxfp8_quantize(ctx, {.x = args.d, .out = act, .starts = args.groups.starts});
}

}  // namespace cistron::cpu
