#include "cistron/ops/cost.h"

#include "cistron/ops/attention.h"
#include "cistron/ops/cross_entropy.h"
#include "cistron/ops/elementwise.h"
#include "cistron/ops/embedding.h"
#include "cistron/ops/gather.h"
#include "cistron/ops/grouped_gemm.h"
#include "cistron/ops/grouped_swiglu.h"
#include "cistron/ops/matmul.h"
#include "cistron/ops/mxfp8_grouped_gemm.h"
#include "cistron/ops/mxfp8_grouped_swiglu.h"
#include "cistron/ops/optimizer.h"
#include "cistron/ops/rms_norm.h"
#include "cistron/ops/router.h"
#include "cistron/ops/swiglu.h"

namespace cistron::ops {

namespace {

template <class... Tensors>
double bytes(const Tensors&... tensors) {
  return static_cast<double>((tensors.bytes() + ... + 0));
}

/// Of a routed tensor, packed or not: the rows in use on one rank.
double routed_bytes(const Groups& groups, const Tensor& tensor) {
  const double rows = static_cast<double>(groups.num_tokens() * groups.top_k());
  return bytes(tensor) * rows / static_cast<double>(tensor.dim(0));
}

double mx_bytes(const MxOperand& x) { return x.defined() ? bytes(x.elements, x.scales) : 0.0; }

double product(int64_t m, int64_t n, int64_t k) { return 2.0 * static_cast<double>(m) * static_cast<double>(n * k); }

Cost grouped(const Groups& groups, const Tensor& a, const Tensor& b, const Tensor& weights) {
  return {.flops = product(groups.num_tokens() * groups.top_k(), weights.dim(1), weights.dim(2)),
          .bytes = routed_bytes(groups, a) + routed_bytes(groups, b) + bytes(weights)};
}

/// The same of operands in MXFP8, which are routed tensors or weights.
template <class... Operands>
Cost grouped_mxfp8(const Groups& groups, const MxOperand& weights, const Tensor& tensor, const Operands&... operands) {
  const double share = static_cast<double>(groups.num_tokens() * groups.top_k()) / static_cast<double>(groups.max_rows());
  const double routed = (bytes(operands.elements, operands.scales) + ...);
  return {.flops = product(groups.num_tokens() * groups.top_k(), weights.rows(), weights.depth()),
          .bytes = routed_bytes(groups, tensor) + share * routed + bytes(weights.elements, weights.scales)};
}

Cost attention(const AttentionShape& shape, double products, double moved) {
  return {.pair_flops = 2.0 * products * static_cast<double>(shape.out_width()), .bytes = moved};
}

double moved_by(const GradSink& sink) { return (sink.accumulate ? 2.0 : 1.0) * bytes(sink.grad); }

}  // namespace

Cost cost_of(const Add& a) { return {.bytes = bytes(a.a, a.b, a.out)}; }
Cost cost_of(const Cast& a) { return {.bytes = bytes(a.x, a.out)}; }
Cost cost_of(const Zero& a) { return {.bytes = bytes(a.out)}; }
Cost cost_of(const Rope& a) { return {.bytes = 2.0 * bytes(a.qkv)}; }

Cost cost_of(const AdamW& a) {
  Cost cost;
  for (const auto& t : a.tensors) cost.bytes += 2.0 * bytes(t.master, t.m, t.v) + bytes(t.grad, t.working);
  for (const auto& t : a.tensors) {
    if (t.m_scale.defined()) cost.bytes += 2.0 * bytes(t.m_scale, t.v_scale);
    cost.bytes += mx_bytes(t.mx.rows) + mx_bytes(t.mx.columns);
  }
  return cost;
}
Cost cost_of(const GradNorm& a) {
  Cost cost;
  for (const Tensor& grad : a.grads) cost.bytes += bytes(grad);
  return cost;
}

Cost cost_of(const AttentionForward& a) { return attention(a.shape, 2.0, bytes(a.qkv, a.out, a.lse)); }
Cost cost_of(const AttentionBackward& a) { return attention(a.shape, 5.0, bytes(a.dout, a.qkv, a.out) + bytes(a.lse, a.dqkv)); }

Cost cost_of(const EmbeddingForward& a) { return {.bytes = 2.0 * bytes(a.out) + bytes(a.tokens)}; }
Cost cost_of(const EmbeddingBackward& a) { return {.bytes = bytes(a.dy, a.tokens) + moved_by(a.dtable)}; }

Cost cost_of(const Gather& a) { return {.bytes = bytes(a.x) + routed_bytes(a.groups, a.out)}; }
Cost cost_of(const Combine& a) { return {.bytes = routed_bytes(a.groups, a.x) + bytes(a.out)}; }

Cost cost_of(const GroupedBiasBackward& a) {
  const double dy = a.by_token ? bytes(a.dy) : routed_bytes(a.groups, a.dy);
  return {.bytes = dy + moved_by(a.dbias) + (a.bias.scaled ? bytes(a.bias.values) + routed_bytes(a.groups, a.dweight) : 0.0)};
}

Cost cost_of(const GroupedGemmForward& a) { return grouped(a.groups, a.x, a.out, a.w); }
Cost cost_of(const GroupedGemmDgrad& a) { return grouped(a.groups, a.dy, a.out, a.w); }
Cost cost_of(const GroupedGemmWgrad& a) { return grouped(a.groups, a.dy, a.x, a.out); }

Cost cost_of(const GroupedSwigluForward& a) {
  Cost cost = grouped(a.groups, a.x, a.gate_up, a.w);
  cost.bytes += routed_bytes(a.groups, a.act);
  return cost;
}
Cost cost_of(const GroupedSwigluBackward& a) {
  Cost cost = grouped(a.groups, a.dy, a.gate_up, a.w);
  cost.bytes += routed_bytes(a.groups, a.dgate_up) + routed_bytes(a.groups, a.act);
  return cost;
}

Cost cost_of(const Mxfp8GroupedSwigluForward& a) { return grouped_mxfp8(a.groups, a.w, a.gate_up, a.x, a.act); }
Cost cost_of(const Mxfp8GroupedSwigluBackward& a) {
  return grouped_mxfp8(a.groups, a.w, a.gate_up, a.dy, a.dgate_up.rows, a.dgate_up.columns, a.act);
}

Cost cost_of(const LinearCrossEntropy& a) {
  const double products = a.dx.defined() ? 3.0 : 1.0;
  return {.flops = products * product(a.x.dim(0), a.w.dim(0), a.w.dim(1)),
          .bytes = bytes(a.x, a.w, a.dx) + (a.dx.defined() ? moved_by(a.dw) : 0.0)};
}

Cost cost_of(const MatmulForward& a) {
  return {.flops = product(a.x.dim(0), a.w.dim(0), a.w.dim(1)), .bytes = bytes(a.x, a.w, a.out)};
}
Cost cost_of(const MatmulDgrad& a) {
  return {.flops = product(a.dy.dim(0), a.w.dim(0), a.w.dim(1)), .bytes = bytes(a.dy, a.w, a.out)};
}
Cost cost_of(const MatmulWgrad& a) {
  return {.flops = product(a.dy.dim(0), a.out.dim(0), a.out.dim(1)), .bytes = bytes(a.dy, a.x, a.out)};
}

Cost cost_of(const Mxfp8GroupedGemm& a) { return grouped_mxfp8(a.groups, a.w, a.out, a.x); }
Cost cost_of(const Mxfp8GroupedWgrad& a) {
  const int64_t rows = a.groups.num_tokens() * a.groups.top_k();
  const double share = static_cast<double>(rows) / static_cast<double>(a.groups.max_rows());
  return {.flops = product(rows, a.out.dim(1), a.out.dim(2)), .bytes = share * (mx_bytes(a.dy) + mx_bytes(a.x)) + bytes(a.out)};
}
Cost cost_of(const Mxfp8Quantize& a) { return {.bytes = bytes(a.x) + mx_bytes(a.out.rows) + mx_bytes(a.out.columns)}; }
Cost cost_of(const Mxfp8QuantizeWeights& a) { return {.bytes = bytes(a.w) + mx_bytes(a.out.rows) + mx_bytes(a.out.columns)}; }

Cost cost_of(const RmsNormForward& a) { return {.bytes = bytes(a.x, a.out, a.rstd)}; }
Cost cost_of(const AddRmsNormForward& a) { return {.bytes = bytes(a.a, a.b, a.sum) + bytes(a.out, a.rstd)}; }
Cost cost_of(const RmsNormBackward& a) { return {.bytes = bytes(a.dy, a.x, a.dx) + (a.accumulate_dx ? bytes(a.dx) : 0.0)}; }

Cost cost_of(const RouterForward& a) { return {.bytes = bytes(a.logits, a.probs, a.lse) + bytes(a.experts, a.weights)}; }
Cost cost_of(const RouterStats& a) { return {.bytes = bytes(a.probs, a.lse, a.experts)}; }
Cost cost_of(const RouterBackward& a) { return {.bytes = bytes(a.probs, a.dlogits, a.experts)}; }

Cost cost_of(const ScaledSwigluForward& a) {
  return {.bytes = routed_bytes(a.groups, a.gate_up) + routed_bytes(a.groups, a.out)};
}
Cost cost_of(const ScaledSwigluBackward& a) {
  return {.bytes = routed_bytes(a.groups, a.dy) + routed_bytes(a.groups, a.gate_up) + routed_bytes(a.groups, a.dgate_up)};
}

}  // namespace cistron::ops
