#include "cistron/ops/grouped_gemm.h"

#include "cistron/cpu/fast/biased_rows.h"
#include "cistron/cpu/fast/row_tiles.h"

namespace cistron::cpu {

namespace {

void rows_by_columns(Context& ctx, const ops::Groups& groups, const Tensor& w, const RowProduct& product,
                     const ops::ExpertBias& bias = {}) {
  const auto tiles = row_tiles(groups);
  const int64_t column_tiles = ceil_div(product.n, kColumnTile);
  ctx.parallel_for(static_cast<int64_t>(tiles.size()) * column_tiles, [&](int64_t i) {
    const RowTile& tile = tiles[static_cast<size_t>(i / column_tiles)];
    RowProduct of_expert = product;
    of_expert.w = offset(w, tile.expert * product.n * product.k);
    row_product(of_expert, RowBias::of(bias, groups, tile.expert), tile.rows,
                tile_range(i % column_tiles, kColumnTile, product.n));
  });
}

OuterProduct outer_of_expert(const ops::GroupedGemmWgrad& args, int64_t e) {
  const int64_t start = args.groups.starts.data<int32_t>()[e], n = args.dy.dim(1), k = args.x.dim(1);
  return {.dy = offset(args.dy, start * n),
          .x = offset(args.x, start * k),
          .dw = args.out.data<float>() + e * n * k,
          .rows = args.groups.counts.data<int32_t>()[e],
          .n = n,
          .k = k,
          .accumulate = args.accumulate,
          .in = args.x.dtype()};
}

}  // namespace

void grouped_gemm_forward(Context& ctx, const ops::GroupedGemmForward& args) {
  rows_by_columns(ctx, args.groups, args.w,
                  {.x = args.x.raw(),
                   .y = args.out.raw(),
                   .n = args.w.dim(1),
                   .k = args.w.dim(2),
                   .transpose_w = true,
                   .in = args.x.dtype(),
                   .out = args.out.dtype()},
                  args.bias);
}

void grouped_gemm_dgrad(Context& ctx, const ops::GroupedGemmDgrad& args) {
  rows_by_columns(ctx, args.groups, args.w,
                  {.x = args.dy.raw(),
                   .y = args.out.raw(),
                   .n = args.w.dim(2),
                   .k = args.w.dim(1),
                   .in = args.dy.dtype(),
                   .out = args.out.dtype()});
}

void grouped_gemm_wgrad(Context& ctx, const ops::GroupedGemmWgrad& args) {
  const int64_t n = args.dy.dim(1), k = args.x.dim(1);
  const int64_t n_tiles = ceil_div(n, kOuterRowsOfExpert), k_tiles = ceil_div(k, kOuterColumns), tiles = n_tiles * k_tiles;
  ctx.parallel_for(args.groups.num_experts() * tiles, [&](int64_t i) {
    const int64_t tile = i % tiles;
    outer_product(outer_of_expert(args, i / tiles), tile_range(tile / k_tiles, kOuterRowsOfExpert, n),
                  tile_range(tile % k_tiles, kOuterColumns, k));
  });
}

}  // namespace cistron::cpu
