#include "cistron/ops/cross_entropy.h"

#include <algorithm>

#include "cistron/core/checked.h"
#include "cistron/ops/check.h"
#include "cistron/ops/dispatch.h"
#include "cistron/ops/matmul.h"

namespace cistron::ops {

namespace {

constexpr auto kOp = "linear_cross_entropy";
// 16 MiB of f32 logits, and no fewer rows than a tile of a product. A card's products want thousands of rows: 256 MiB there.
constexpr int64_t kChunkElements = int64_t{1} << 22;
constexpr int64_t kCardChunkElements = int64_t{1} << 26;
constexpr int64_t kChunkRows = 128;
constexpr int64_t kCardPitch = 8;  // tensor cores read rows in pieces of 8 bf16

Shape chunk_of(const Context& ctx, int64_t tokens, int64_t vocabulary) {
  const bool card = ctx.target().is_cuda();
  const int64_t pitch = card ? round_up(vocabulary, kCardPitch) : vocabulary;
  const int64_t fitting = (card ? kCardChunkElements : kChunkElements) / pitch / kChunkRows * kChunkRows;
  return {std::min(tokens, std::max(kChunkRows, fitting)), pitch};
}

void check(const LinearCrossEntropy& args) {
  check_float(kOp, "x", args.x, 2);
  check_float(kOp, "w", args.w, 2);
  const int64_t tokens = args.x.dim(0), hidden = args.x.dim(1), vocabulary = args.w.dim(0);
  CISTRON_CHECK(vocabulary > 0, "[{}] w has no rows", kOp);
  check_tensor(kOp, "w", args.w, {vocabulary, hidden}, args.x.dtype());
  check_tensor(kOp, "labels", args.labels, {tokens}, DType::kI32);
  check_tensor(kOp, "loss_weight", args.loss_weight, {tokens}, DType::kF32);
  check_tensor(kOp, "nll", args.nll, {tokens}, DType::kF32);
  check_tensor(kOp, "loss", args.loss, {1}, DType::kF64);
  if (!args.dx.defined()) return;
  check_tensor(kOp, "dx", args.dx, {tokens, hidden}, args.x.dtype());
  check_tensor(kOp, "dw", args.dw.grad, {vocabulary, hidden}, DType::kF32);
}

}  // namespace

void linear_cross_entropy(Context& ctx, const LinearCrossEntropy& args) {
  check(args);
  const Shape chunk = chunk_of(ctx, args.x.dim(0), args.w.dim(0));
  LinearCrossEntropy with_scratch = args;
  with_scratch.logits = ctx.empty(chunk, DType::kF32);
  if (args.dx.defined())
    with_scratch.dlogits = args.x.dtype() == DType::kF32 ? with_scratch.logits : ctx.empty(chunk, args.x.dtype());
  with_scratch.workspace = dense_workspace(ctx);
  CISTRON_CHECK(!args.dx.defined() || args.state != nullptr || ctx.device.is_meta(), "[{}] gradients need a step state", kOp);
  dispatch(kOp, ctx, with_scratch, cpu::linear_cross_entropy, cuda::linear_cross_entropy);
}

}  // namespace cistron::ops
