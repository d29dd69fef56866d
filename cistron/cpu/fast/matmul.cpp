#include "cistron/ops/matmul.h"

#include "cistron/cpu/fast/products.h"

namespace cistron::cpu {

void matmul_forward(Context& ctx, const ops::MatmulForward& args) {
  const RowProduct product{.x = args.x.raw(),
                           .w = args.w.raw(),
                           .y = args.out.raw(),
                           .n = args.w.dim(0),
                           .k = args.w.dim(1),
                           .transpose_w = true,
                           .accumulate = args.accumulate,
                           .in = args.x.dtype(),
                           .out = args.out.dtype()};
  row_product(ctx, product, args.x.dim(0));
}

void matmul_dgrad(Context& ctx, const ops::MatmulDgrad& args) {
  const RowProduct product{.x = args.dy.raw(),
                           .w = args.w.raw(),
                           .y = args.out.raw(),
                           .n = args.w.dim(1),
                           .k = args.w.dim(0),
                           .accumulate = args.accumulate,
                           .in = args.dy.dtype(),
                           .out = args.out.dtype()};
  row_product(ctx, product, args.dy.dim(0));
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
  outer_product(ctx, product);
}

}  // namespace cistron::cpu
