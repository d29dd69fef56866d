// The MXFP8 quantisers on 1 GiB of bf16 in turns with the device copy (C), each over two inputs so that none is found in L2.
// Bytes are what has to move: 2 read and 1 written a copy for each value, and the scales.
#include <fmt/format.h>

#include <numeric>
#include <random>

#include "bench/kernels/cuda/mlp_shapes.cuh"
#include "bench/kernels/cuda/timing.cuh"
#include "cistron/core/checked.h"
#include "cistron/ops/mxfp8.h"
#include "cistron/ops/optimizer.h"
#include "tests/cuda/device_tensor.cuh"

namespace cistron::bench {
namespace {

using test::DeviceTensor;

constexpr int64_t kRows = 131072;
constexpr int64_t kDepth = 4096;
constexpr double kValues = static_cast<double>(kRows) * kDepth;

/// An operand and its memory.
struct DeviceOperand {
  DeviceTensor elements, scales;
  ops::MxOperand operand;

  DeviceOperand(const Shape& shape, const Shape& scale_shape, ops::MxOperand layout)
      : elements(shape, DType::kU8), scales(scale_shape, DType::kU8), operand(layout) {
    operand.elements = elements;
    operand.scales = scales;
  }
};

/// Each token's experts by chance; rows by expert, segments at multiples of 128.
struct Routes {
  std::vector<int32_t> source_row, starts{0};

  explicit Routes(const MlpShape& s) {
    std::mt19937 generator(7);
    std::vector<size_t> experts(static_cast<size_t>(s.experts));
    std::iota(experts.begin(), experts.end(), size_t{0});
    std::vector<std::vector<int32_t>> tokens(experts.size());
    for (int32_t token = 0; token < s.tokens; ++token)
      for (size_t j = 0; j < static_cast<size_t>(s.top_k); ++j) {
        std::swap(experts[j], experts[j + generator() % (experts.size() - j)]);
        tokens[experts[j]].push_back(token);
      }
    for (const auto& of_expert : tokens) {
      source_row.insert(source_row.end(), of_expert.begin(), of_expert.end());
      source_row.resize(static_cast<size_t>(round_up(static_cast<int64_t>(source_row.size()), 128)), -1);
      starts.push_back(static_cast<int32_t>(source_row.size()));
    }
  }
};

struct Bench {
  Context ctx = test::cuda_context();
  DeviceTensor x[2] = {test::random_device_tensor({kRows, kDepth}, DType::kBF16, {1}),
                       test::random_device_tensor({kRows, kDepth}, DType::kBF16, {2})};
  DeviceTensor copied{{kRows, kDepth}, DType::kBF16};
  DeviceTensor source_row{shuffled_rows()};
  int turn = 0;

  static std::vector<int32_t> shuffled_rows() {
    std::vector<int32_t> rows(kRows);
    for (int64_t r = 0; r < kRows; ++r) rows[static_cast<size_t>(r)] = static_cast<int32_t>(r * 7919 % kRows);
    return rows;
  }
  const Tensor& next() { return x[++turn % 2]; }
  Entry copy() {
    return {"copy", 4 * kValues, [this] {
              CISTRON_CUDA_CHECK(cudaMemcpyAsync(copied.get().raw(), next().raw(), 2 * kDepth * kRows, cudaMemcpyDeviceToDevice));
            }};
  }
  void report(const std::string& name, double bytes, const std::function<void()>& launch) {
    std::vector<Entry> entries = {copy(), {name, bytes, launch}};
    take_turns(entries, 11);
    fmt::print("{:32} {:7.3f} ms {:6.0f} GB/s  C {:6.0f}  {:5.3f} C\n", name, entries[1].median_ms(), entries[1].rate() * 1e3,
               entries[0].rate() * 1e3, entries[1].rate() / entries[0].rate());
  }

  void activations(int64_t group) {
    const DeviceOperand rows({kRows, kDepth}, {kDepth / group, kRows}, {.group = group});
    const DeviceOperand columns({kDepth, kRows}, {kRows / group, kDepth}, {.group = group});
    const ops::MxTensor both{rows.operand, columns.operand};
    const double scales = kValues / static_cast<double>(group);
    const auto name = [&](const char* what) { return fmt::format("mxfp8/{} {}", group, what); };
    report(name("rows and columns"), 4 * kValues + 2 * scales, [&] { ops::mxfp8_quantize(ctx, {.x = next(), .out = both}); });
    report(name("gathered, both"), 4 * kValues + 2 * scales,
           [&] { ops::mxfp8_quantize(ctx, {.x = next(), .out = both, .source_row = source_row}); });
    report(name("rows"), 3 * kValues + scales, [&] { ops::mxfp8_quantize(ctx, {.x = next(), .out = {.rows = both.rows}}); });
    report(name("columns"), 3 * kValues + scales,
           [&] { ops::mxfp8_quantize(ctx, {.x = next(), .out = {.columns = both.columns}}); });
    report(name("decode to bf16"), 3 * kValues + scales, [&] { ops::mxfp8_dequantize(ctx, {.x = both.rows, .out = copied}); });
  }

  /// As the fused MLP gathers: a token to the rows of its experts. Bytes: each token read once, its rows written.
  void gathered(const MlpShape& s) {
    const Routes routes(s);
    const DeviceTensor from(routes.source_row), starts(routes.starts);
    const auto rows = static_cast<int64_t>(routes.source_row.size());
    const DeviceOperand row_wise({rows, s.hidden}, {s.hidden / 128, rows}, {.group = 128});
    const DeviceOperand turned({s.hidden, rows}, {rows / 128, s.hidden}, {.group = 128});
    const double tokens = static_cast<double>(s.tokens * s.hidden),
                 scaled = tokens * static_cast<double>(s.top_k) * (1 + 1 / 128.0);
    const auto of = [&](const char* what, const ops::MxTensor& out, double copies) {
      report(fmt::format("{}, {}", s.name, what), 2 * tokens + copies * scaled, [&] {
        ops::mxfp8_quantize(ctx,
                            {.x = next().reshape({kRows * kDepth}).rows(0, s.tokens * s.hidden).reshape({s.tokens, s.hidden}),
                             .out = out,
                             .source_row = from,
                             .starts = starts});
      });
    };
    of("rows", {.rows = row_wise.operand}, 1);
    of("columns", {.columns = turned.operand}, 1);
    of("both", {row_wise.operand, turned.operand}, 2);
  }

  void weights(int64_t group, int64_t block) {
    constexpr int64_t kExperts = 8;
    constexpr int64_t kN = kRows / kExperts;
    const int64_t section_blocks = ceil_div(kN / 2, block);
    const DeviceOperand rows({kExperts, kN, kDepth}, {kExperts, 2 * section_blocks, kDepth / group},
                             {.group = group, .block_rows = block, .sections = 2});
    const DeviceOperand columns({kExperts, kDepth, kN}, {kExperts, ceil_div(kDepth, block), kN / group},
                                {.group = group, .block_rows = block});
    const ops::MxTensor both{rows.operand, columns.operand};
    report(fmt::format("mxfp8/{} weights, both", group), 4 * kValues, [&] {
      const Tensor w = next().reshape({kExperts, kN, kDepth});
      ops::mxfp8_quantize_weights(ctx, {.w = w, .out = both});
    });
  }

  /// Of f32 weights, which the optimizer has to pass over anyway.
  void update() {
    const Shape shape{8, kRows / 64, kDepth};
    const DeviceOperand rows({8, shape[1], kDepth}, {8, shape[1] / 128, kDepth / 128}, {.block_rows = 128, .sections = 2});
    const DeviceOperand columns({8, kDepth, shape[1]}, {8, kDepth / 128, shape[1] / 128}, {.block_rows = 128});
    const auto values = [&](uint64_t seed) { return test::random_device_tensor(shape, DType::kF32, {seed}); };
    const DeviceTensor master = values(3), grad = values(4), m = values(5), v(shape, DType::kF32);
    CISTRON_CUDA_CHECK(cudaMemset(v.get().raw(), 0, static_cast<size_t>(v.get().bytes())));
    const StepState start{.step = 1, .learning_rate = 1e-3F, .bias_correction1 = 0.1F, .bias_correction2 = 0.05F};
    const DeviceTensor state({static_cast<int64_t>(sizeof(start))}, DType::kU8);
    CISTRON_CUDA_CHECK(cudaMemcpy(state.get().raw(), &start, sizeof(start), cudaMemcpyHostToDevice));
    const ops::AdamWTensor plain{.master = master, .grad = grad, .m = m, .v = v, .weight_decay = 0.1F};
    ops::AdamWTensor quantized = plain;
    quantized.mx = {rows.operand, columns.operand};
    const auto adamw = [&](const ops::AdamWTensor& tensor) {
      ops::adamw(ctx, {.tensors = std::vector{tensor}, .state = static_cast<const StepState*>(state.get().raw())});
    };
    const double elements = static_cast<double>(shape.numel());
    report("AdamW", 28 * elements, [&] { adamw(plain); });
    report("AdamW, then weights", 34 * elements, [&] {
      adamw(plain);
      ops::mxfp8_quantize_weights(ctx, {.w = master, .out = quantized.mx});
    });
    report("AdamW with weights", 30 * elements, [&] { adamw(quantized); });
  }
};

}  // namespace
}  // namespace cistron::bench

int main() {
  cistron::bench::Bench bench;
  bench.activations(128);
  bench.activations(32);
  for (const auto& shape : cistron::bench::kShapes) bench.gathered(shape);
  bench.weights(128, 128);
  bench.weights(32, 96);
  bench.update();
}
