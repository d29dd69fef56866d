#include "cistron/ops/grouped_swiglu.h"

#include <cstring>

#include "cistron/cpu/fast/biased_rows.h"
#include "cistron/cpu/fast/parallel.h"
#include "cistron/cpu/fast/routed_rows.h"
#include "cistron/cpu/fast/row_tiles.h"
#include "cistron/cpu/fast/swiglu_rows.h"

namespace cistron::cpu {

namespace {

/// f(tile of rows, columns of F, number of the columns' tile), in parallel.
template <class F>
void for_tiles(Context& ctx, const ops::Groups& groups, int64_t width, F&& f) {
  const auto tiles = row_tiles(groups);
  const int64_t columns = ceil_div(width, ops::kSwigluTile);
  ctx.parallel_for(static_cast<int64_t>(tiles.size()) * columns, [&](int64_t i) {
    const int64_t column = i % columns;
    f(tiles[static_cast<size_t>(i / columns)], tile_range(column, ops::kSwigluTile, width), column);
  });
}

void zero_pad_rows(Context& ctx, const ops::Groups& groups, const Tensor& tensor) {
  const auto* source_row = groups.source_row.data<int32_t>();
  const int64_t row_bytes = tensor.dim(1) * size_of(tensor.dtype());
  for_rows(ctx, used_rows(groups), tensor.dim(1), [&](int64_t r) {
    if (source_row[r] < 0) std::memset(offset(tensor, r * tensor.dim(1)), 0, static_cast<size_t>(row_bytes));
  });
}

/// Row `i` of a tile.
template <class T>
SwigluRow<T> swiglu_row(const Tensor& gate_up, const ops::Groups& groups, const RowTile& tile, int64_t i, Range columns) {
  const int64_t width = gate_up.dim(1) / 2;
  const T* row = gate_up.data<T>() + (tile.packed + i) * 2 * width + columns.begin;
  return {row, row + width, groups.weight.data<float>()[tile.rows.begin + i], columns.count};
}

template <class T>
void forward_tile(const ops::GroupedSwigluForward& args, const RowTile& tile, Range columns) {
  const int64_t width = args.act.dim(1), hidden = args.x.dim(1);
  const Range rows{0, tile.rows.count};
  const RowProduct product{.x = offset(args.x, tile.rows.begin * hidden),
                           .w = offset(args.w, tile.expert * 2 * width * hidden),
                           .y = offset(args.gate_up, tile.packed * 2 * width),
                           .n = 2 * width,
                           .k = hidden,
                           .transpose_w = true,
                           .in = args.x.dtype(),
                           .out = args.x.dtype()};
  const RowBias bias = RowBias::of({.values = args.bias}, args.groups, tile.expert);
  if (columns.count == width) {
    row_product(product, bias, rows, {0, 2 * width});  // gate and up are neighbours
  } else {
    row_product(product, bias, rows, columns);
    row_product(product, bias, rows, {width + columns.begin, columns.count});
  }
  T* act = args.act.data<T>() + tile.rows.begin * width + columns.begin;
  for (int64_t i = 0; i < rows.count; ++i) swiglu_row<T>(args.gate_up, args.groups, tile, i, columns).forward(act + i * width);
}

/// The tile of d lies where act will.
template <class T>
void backward_tile(const ops::GroupedSwigluBackward& args, const RowTile& tile, Range columns, float* dweight) {
  const int64_t width = args.act.dim(1), hidden = args.dy.dim(1);
  const RowProduct product{.x = args.dy.raw(),
                           .w = offset(args.w, tile.expert * hidden * width),
                           .y = args.act.raw(),
                           .n = width,
                           .k = hidden,
                           .in = args.dy.dtype(),
                           .out = args.dy.dtype()};
  row_product(product, tile.rows, columns);
  for (int64_t i = 0; i < tile.rows.count; ++i) {
    const int64_t r = tile.rows.begin + i;
    const auto row = swiglu_row<T>(args.gate_up, args.groups, tile, i, columns);
    T* act = args.act.data<T>() + r * width + columns.begin;
    T* dgate = args.dgate_up.data<T>() + r * 2 * width + columns.begin;
    dweight[r] = row.backward(act, dgate, dgate + width, act);
  }
}

/// dweight[r] = sum over tiles of columns, in their order; zeros in pad rows.
void sum_partials(Context& ctx, const ops::GroupedSwigluBackward& args) {
  const int64_t columns = args.partials.dim(0), rows = args.partials.dim(1);
  const auto* partials = args.partials.data<float>();
  const auto* source_row = args.groups.source_row.data<int32_t>();
  for_rows(ctx, used_rows(args.groups), columns, [&](int64_t r) {
    float sum = 0;
    for (int64_t c = 0; source_row[r] >= 0 && c < columns; ++c) sum += partials[c * rows + r];
    args.dweight.data<float>()[r] = sum;
  });
}

}  // namespace

void grouped_swiglu_forward(Context& ctx, const ops::GroupedSwigluForward& args) {
  with_float_type(args.x.dtype(), [&](auto type) {
    for_tiles(ctx, args.groups, args.act.dim(1),
              [&](const RowTile& tile, Range columns, int64_t) { forward_tile<decltype(type)>(args, tile, columns); });
  });
  zero_pad_rows(ctx, args.groups, args.act);
}

void grouped_swiglu_backward(Context& ctx, const ops::GroupedSwigluBackward& args) {
  with_float_type(args.dy.dtype(), [&](auto type) {
    for_tiles(ctx, args.groups, args.act.dim(1), [&](const RowTile& tile, Range columns, int64_t number) {
      backward_tile<decltype(type)>(args, tile, columns, args.partials.data<float>() + number * args.partials.dim(1));
    });
  });
  zero_pad_rows(ctx, args.groups, args.act);
  zero_pad_rows(ctx, args.groups, args.dgate_up);
  sum_partials(ctx, args);
}

}  // namespace cistron::cpu
