#include "cistron/ops/matmul.h"

#include "cistron/cpu/fast/products.h"

namespace cistron::cpu {

namespace {

void rows_by_columns(Context& ctx, int64_t rows, const RowProduct& product) {
  const int64_t row_tiles = ceil_div(rows, kRowTile), column_tiles = ceil_div(product.n, kColumnTile);
  ctx.parallel_for(row_tiles * column_tiles, [&](int64_t i) {
    row_product(product, tile_range(i / column_tiles, kRowTile, rows), tile_range(i % column_tiles, kColumnTile, product.n));
  });
}

}  // namespace

void matmul_forward(Context& ctx, const ops::MatmulForward& args) {
  rows_by_columns(ctx, args.x.dim(0),
                  {.x = args.x.raw(),
                   .w = args.w.raw(),
                   .y = args.out.raw(),
                   .n = args.w.dim(0),
                   .k = args.w.dim(1),
                   .transpose_w = true,
                   .accumulate = args.accumulate,
                   .in = args.x.dtype(),
                   .out = args.out.dtype()});
}

void matmul_dgrad(Context& ctx, const ops::MatmulDgrad& args) {
  rows_by_columns(ctx, args.dy.dim(0),
                  {.x = args.dy.raw(),
                   .w = args.w.raw(),
                   .y = args.out.raw(),
                   .n = args.w.dim(1),
                   .k = args.w.dim(0),
                   .accumulate = args.accumulate,
                   .in = args.dy.dtype(),
                   .out = args.out.dtype()});
}

void matmul_wgrad(Context& ctx, const ops::MatmulWgrad& args) {
  const OuterProduct product{.dy = args.dy.raw(),
                             .x = args.x.raw(),
                             .dw = args.out.data<float>(),
                             .rows = args.x.dim(0),
                             .n = args.dy.dim(1),
                             .k = args.x.dim(1),
                             .accumulate = args.accumulate,
                             .in = args.x.dtype()};
  const int64_t n_tiles = ceil_div(product.n, kRowTile), k_tiles = ceil_div(product.k, kColumnTile);
  ctx.parallel_for(n_tiles * k_tiles, [&](int64_t i) {
    outer_product(product, tile_range(i / k_tiles, kRowTile, product.n), tile_range(i % k_tiles, kColumnTile, product.k));
  });
}

}  // namespace cistron::cpu
