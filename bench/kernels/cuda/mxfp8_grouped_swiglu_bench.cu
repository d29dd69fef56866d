// The products beside SwiGLU in MXFP8, against their parts one by one, the fused bf16 ones, and cuBLAS's dense bf16 8192^3
// product (D), in turns; after a check of the results' bits against the parts' and of the products against float64.
//   mxfp8_grouped_swiglu_bench
#include <fmt/format.h>

#include "bench/kernels/cuda/mlp_shapes.cuh"
#include "bench/kernels/cuda/timing.cuh"
#include "cistron/cuda/quant/sm90_mxfp8_swiglu_backward.h"
#include "cistron/ops/grouped_swiglu.h"
#include "cistron/ops/mxfp8_grouped_gemm.h"
#include "cistron/ops/mxfp8_grouped_swiglu.h"
#include "cistron/ops/swiglu.h"
#include "tests/cuda/mx_operands.cuh"
#include "tests/cuda/reference.cuh"

namespace cistron::bench {
namespace {

using test::DeviceTensor;

/// -1 in pad rows.
std::vector<int32_t> source_rows(const test::TestGroups& g) {
  std::vector<int32_t> rows(static_cast<size_t>(g.rows()), -1);
  for (size_t e = 0; e < g.counts.size(); ++e) std::fill_n(rows.begin() + g.starts[e], g.counts[e], 0);
  return rows;
}

/// A result of ours and of the parts; elements and scales.
struct Operand {
  DeviceTensor elements, scales;
  ops::MxOperand view;
  Operand(int64_t rows, int64_t depth)
      : elements({rows, depth}, DType::kU8), scales({depth / 128, round_up(rows, 128)}, DType::kU8) {
    view = {.elements = elements, .scales = scales};
    poison();
  }
  void poison() const {
    test::poison(elements);
    test::poison(scales);
  }
};

__global__ void count_unequal(const uint8_t* a, const uint8_t* b, int64_t bytes, unsigned long long* unequal) {
  unsigned long long mine = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < bytes; i += int64_t{gridDim.x} * blockDim.x)
    mine += a[i] != b[i];
  if (mine > 0) atomicAdd(unequal, mine);
}
uint64_t unequal(const Tensor& a, const Tensor& b) {
  const DeviceTensor count(std::vector<int64_t>{0});
  count_unequal<<<1024, 256>>>(static_cast<const uint8_t*>(a.raw()), static_cast<const uint8_t*>(b.raw()), a.bytes(),
                               static_cast<unsigned long long*>(count.get().raw()));
  uint64_t host = 0;
  CISTRON_CUDA_CHECK(cudaMemcpy(&host, count.get().raw(), sizeof host, cudaMemcpyDeviceToHost));
  return host;
}
uint64_t unequal(const Operand& a, const Operand& b) { return unequal(a.elements, b.elements) + unequal(a.scales, b.scales); }

void print(const MlpShape& s, const std::vector<Entry>& entries) {
  for (const Entry& e : entries)
    fmt::print("{:16} {:34} {:8.3f} ms {:7.1f} TFLOP/s {:5.3f} D\n", s.name, e.name, e.median_ms(), e.rate(),
               e.rate() / entries[0].rate());
}

/// What both directions share.
struct Bench {
  const MlpShape& s;
  const Entry& d;
  Context ctx = test::cuda_context();
  test::TestGroups g{uniform_counts(s)};
  int64_t rows = g.rows(), h = s.hidden, f = s.intermediate;
  DeviceTensor weight{std::vector<float>(static_cast<size_t>(rows), 0.5F)}, source{source_rows(g)},
      token_rows{{g.total(), 1}, DType::kI32};
  test::RandomMxOperand x = test::random_activation(rows, h, 128, {.elements = {.seed = 1, .scale = 60}});
  DeviceTensor x_bf16 = randoms({rows, h}, 1), gate_up_rows = randoms({rows, 2 * f}, 4), values{{rows, f}, DType::kBF16};
  DeviceTensor gate_up{{g.total(), 2 * f}, DType::kBF16};  // those rows, packed
  double product = 2.0 * static_cast<double>(g.total()) * static_cast<double>(h * f);

  Bench(const MlpShape& shape, const Entry& dense) : s(shape), d(dense) {
    ctx.precision = Precision::kBF16;
    g.groups.weight = weight;
    g.groups.source_row = source;
    g.groups.token_rows = token_rows;
  }
  [[nodiscard]] test::RandomMxOperand weights(int64_t n, int64_t k, int64_t sections) const {
    return test::random_weight(s.experts, n, k, 128, sections, {.elements = {.seed = 2, .scale = 60}, .smallest_exponent = 112});
  }

  void pack() {
    const auto row = static_cast<size_t>(4 * f);
    auto* to = static_cast<std::byte*>(gate_up.get().raw());
    const auto* from = static_cast<const std::byte*>(gate_up_rows.get().raw());
    for (size_t e = 0; e < g.counts.size(); to += row * g.counts[e++])
      CISTRON_CUDA_CHECK(cudaMemcpy(to, from + row * g.starts[e], row * g.counts[e], cudaMemcpyDeviceToDevice));
  }

  void forward() {
    const test::RandomMxOperand w = weights(2 * f, h, 2);
    const DeviceTensor w_bf16 = randoms({s.experts, 2 * f, h}, 2, 0.02F);
    const Operand act(rows, f), parts_act(rows, f);
    const ops::MxTensor quantised{.rows = parts_act.view, .columns = {}};
    const auto fused = [&] { ops::mxfp8_grouped_swiglu_forward(ctx, {x.operand, w.operand, g.groups, gate_up, act.view}); };
    const auto parts = [&] {
      ops::mxfp8_grouped_gemm(ctx, {x.operand, w.operand, g.groups, gate_up_rows});
      ops::scaled_swiglu_forward(ctx, {gate_up_rows, g.groups, values});
      ops::mxfp8_quantize(ctx, {.x = values, .out = quantised, .starts = g.groups.starts});
    };
    fused();
    parts();
    test::RefProduct reference = test::ref_product(test::ref_operand(x.operand), test::ref_operand(w.operand), gate_up_rows, g);
    reference.k = h;
    const auto error = test::deviation(reference, 20000);
    fmt::print("{:16} forward: {} bytes of act differ; gate_up errs by {:.1e}\n", s.name, unequal(act, parts_act),
               error.relative());
    std::vector<Entry> entries{
        d,
        {"bf16 fc1 + SwiGLU", 2 * product,
         [&] { cuda::grouped_swiglu_forward(ctx, {x_bf16, w_bf16, g.groups, gate_up, values}); }},
        {"mxfp8 fc1 alone", 2 * product, [&] { ops::mxfp8_grouped_gemm(ctx, {x.operand, w.operand, g.groups, gate_up_rows}); }},
        {"mxfp8 fc1, SwiGLU, quantise", 2 * product, parts},
        {"mxfp8 fc1 + SwiGLU + quantise", 2 * product, fused}};
    take_turns(entries, 9);
    print(s, entries);
  }

  void backward() {
    const test::RandomMxOperand w = weights(f, h, 1);
    const DeviceTensor w_bf16 = randoms({s.experts, h, f}, 3, 0.02F), dgate_up({rows, 2 * f}, DType::kBF16),
                       dweight({rows}, DType::kF32);
    const DeviceTensor d_values({rows, f}, DType::kBF16), partials({f / 128, rows}, DType::kF32),
        wide({ceil_div(f, ops::kSwigluTile), rows}, DType::kF32);
    test::fill(gate_up_rows, {.seed = 4});
    pack();
    const Operand along(rows, 2 * f), turned(2 * f, rows), act(f, rows), parts_along(rows, 2 * f), parts_turned(2 * f, rows),
        parts_act(f, rows);
    const ops::MxTensor grads{along.view, turned.view}, parts_grads{parts_along.view, parts_turned.view},
        quantised{.rows = {}, .columns = parts_act.view};
    const ops::Mxfp8GroupedSwigluBackward args{.dy = x.operand,
                                               .w = w.operand,
                                               .gate_up = gate_up,
                                               .groups = g.groups,
                                               .dgate_up = grads,
                                               .act = act.view,
                                               .dweight = dweight,
                                               .d = d_values,
                                               .partials = partials};
    const auto fused = [&] { cuda::mxfp8_grouped_swiglu_backward(ctx, args); };
    const auto parts = [&] {
      ops::mxfp8_grouped_gemm(ctx, {x.operand, w.operand, g.groups, values});
      ops::scaled_swiglu_backward(ctx, {values, gate_up_rows, g.groups, dgate_up, dweight});
      ops::mxfp8_quantize(ctx, {.x = dgate_up, .out = parts_grads, .starts = g.groups.starts});
      ops::scaled_swiglu_forward(ctx, {gate_up_rows, g.groups, values});
      ops::mxfp8_quantize(ctx, {.x = values, .out = quantised, .starts = g.groups.starts});
    };
    fused();
    parts();
    fmt::print("{:16} backward: {} bytes of operands differ\n", s.name,
               unequal(along, parts_along) + unequal(turned, parts_turned) + unequal(act, parts_act));
    std::vector<Entry> entries{
        d,
        {"bf16 dgrad of fc2 + SwiGLU", product,
         [&] { cuda::grouped_swiglu_backward(ctx, {x_bf16, w_bf16, gate_up, g.groups, dgate_up, values, dweight, wide}); }},
        {"mxfp8 dgrad of fc2 alone", product, [&] { ops::mxfp8_grouped_gemm(ctx, {x.operand, w.operand, g.groups, values}); }},
        {"mxfp8 dgrad, SwiGLU, quantise", product, parts},
        {"mxfp8 dgrad + SwiGLU + quantise", product, fused},
        {"its pass after the product", product, [&] { cuda::sm90::mxfp8_swiglu_backward(ctx, args); }}};
    take_turns(entries, 9);
    print(s, entries);
    const double bytes = 11.0 * static_cast<double>(g.total() * f);
    fmt::print("{:16} that pass moves {:.0f} MB at {:.0f} GB/s\n", s.name, bytes / 1e6, bytes / entries.back().median_ms() / 1e6);
  }
};

}  // namespace
}  // namespace cistron::bench

int main() {
  cublasHandle_t handle = nullptr;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 1;
  const auto d = cistron::bench::dense(handle);
  for (const auto& shape : cistron::bench::kShapes) {
    cistron::bench::Bench bench(shape, d);
    bench.forward();
    bench.backward();
  }
}
