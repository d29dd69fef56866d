#include "cistron/ops/mxfp8.h"

#include "cistron/core/checked.h"
#include "cistron/ops/dispatch.h"

namespace cistron::ops {
namespace {

constexpr int64_t kRowPadding = 128;

int64_t weight_block_rows(int64_t group) { return group == 128 ? 128 : 96; }

MxOperand empty_operand(const Context& ctx, const Shape& shape, MxOperand layout) {
  layout.elements = ctx.empty(shape, DType::kU8);
  const int64_t groups = div_exact(layout.depth(), layout.group);
  layout.scales = layout.is_weight() ? ctx.empty({shape[0], layout.row_blocks(), groups}, DType::kU8)
                                     : ctx.empty({groups, round_up(shape[0], kRowPadding)}, DType::kU8);
  return layout;
}

void check_group(int64_t group) {
  CISTRON_CHECK(group == 128 || group == 32, "[mxfp8] a scale group is 128 or 32 values, not {}", group);
}

void check_source(const char* op, const Tensor& x, int rank) {
  CISTRON_CHECK(x.dtype() == DType::kF32 || x.dtype() == DType::kBF16, "[{}] the values are {}: f32 or bf16 wanted", op,
                name_of(x.dtype()));
  CISTRON_CHECK(x.shape().rank() == rank, "[{}] the values have shape {}: rank {} wanted", op, to_string(x.shape()), rank);
}

void check_elements(const char* op, const MxOperand& operand, const Shape& shape) {
  if (!operand.defined()) return;
  check_tensor(op, "elements", operand.elements, shape, DType::kU8);
  check_operand(op, operand);
}

void check_copies(const char* op, const MxTensor& t) {
  CISTRON_CHECK(!t.rows.defined() || !t.columns.defined() || t.rows.group == t.columns.group,
                "[{}] copies with scale groups of {} and {}: one group wanted", op, t.rows.group, t.columns.group);
}

void check_norm(const char* op, const Mxfp8Quantize& args) {
  check_tensor(op, "rstd", args.rstd, {args.x.dim(0)}, DType::kF32);
  check_tensor(op, "norm_weight", args.norm_weight, {args.x.dim(1)}, DType::kF32);
  for (const MxOperand* copy : {&args.out.rows, &args.out.columns})
    CISTRON_CHECK(!copy->defined() || copy->group == 128, "[{}] norms are quantised in scale groups of 128, not {}", op,
                  copy->group);
  CISTRON_CHECK(!args.source_row.defined(), "[{}] norms are quantised where they lie, not gathered", op);
}

}  // namespace

void check_operand(const char* op, const MxOperand& x) {
  check_group(x.group);
  CISTRON_CHECK(x.depth() % x.group == 0, "[{}] the contraction has {} values: a multiple of the group, {}, wanted", op,
                x.depth(), x.group);
  const Shape scales = x.is_weight() ? Shape{x.elements.dim(0), x.row_blocks(), x.num_groups()}
                                     : Shape{x.num_groups(), round_up(x.rows(), kRowPadding)};
  CISTRON_CHECK(x.block_rows == (x.is_weight() ? weight_block_rows(x.group) : 1), "[{}] {} rows share a scale", op, x.block_rows);
  check_tensor(op, "scales", x.scales, scales, DType::kU8);
}

MxTensor mxfp8_empty(const Context& ctx, int64_t rows, int64_t depth, int64_t group, MxCopies copies) {
  check_group(group);
  MxTensor out;
  if (copies.rows) out.rows = empty_operand(ctx, {rows, depth}, {.group = group});
  if (copies.columns) out.columns = empty_operand(ctx, {depth, round_up(rows, kRowPadding)}, {.group = group});
  return out;
}

MxTensor mxfp8_empty_weights(const Context& ctx, const Shape& shape, int64_t group, int64_t sections, MxCopies copies) {
  check_group(group);
  const int64_t block_rows = weight_block_rows(group);
  MxTensor out;
  if (copies.rows) out.rows = empty_operand(ctx, shape, {.group = group, .block_rows = block_rows, .sections = sections});
  if (copies.columns)
    out.columns = empty_operand(ctx, {shape[0], shape[2], shape[1]}, {.group = group, .block_rows = block_rows});
  return out;
}

void mxfp8_quantize(Context& ctx, const Mxfp8Quantize& args) {
  constexpr auto kOp = "mxfp8_quantize";
  check_source(kOp, args.x, 2);
  check_copies(kOp, args.out);
  const int64_t rows = args.source_row.defined() ? args.source_row.dim(0) : args.x.dim(0);
  if (args.source_row.defined()) check_tensor(kOp, "source_row", args.source_row, {rows}, DType::kI32);
  if (args.starts.defined()) check_tensor(kOp, "starts", args.starts, {args.starts.dim(0)}, DType::kI32);
  if (args.rstd.defined()) check_norm(kOp, args);
  check_elements(kOp, args.out.rows, {rows, args.x.dim(1)});
  check_elements(kOp, args.out.columns, {args.x.dim(1), round_up(rows, kRowPadding)});
  dispatch(kOp, ctx, args, cpu::mxfp8_quantize, cuda::mxfp8_quantize);
}

void mxfp8_quantize_weights(Context& ctx, const Mxfp8QuantizeWeights& args) {
  constexpr auto kOp = "mxfp8_quantize_weights";
  check_source(kOp, args.w, 3);
  check_copies(kOp, args.out);
  check_elements(kOp, args.out.rows, args.w.shape());
  check_elements(kOp, args.out.columns, {args.w.dim(0), args.w.dim(2), args.w.dim(1)});
  dispatch(kOp, ctx, args, cpu::mxfp8_quantize_weights, cuda::mxfp8_quantize_weights);
}

void mxfp8_dequantize(Context& ctx, const Mxfp8Dequantize& args) {
  constexpr auto kOp = "mxfp8_dequantize";
  check_operand(kOp, args.x);
  check_tensor(kOp, "out", args.out, args.x.elements.shape(), args.out.dtype() == DType::kBF16 ? DType::kBF16 : DType::kF32);
  dispatch(kOp, ctx, args, cpu::mxfp8_dequantize, cuda::mxfp8_dequantize);
}

}  // namespace cistron::ops
