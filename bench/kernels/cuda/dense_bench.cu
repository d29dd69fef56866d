// The dense products of a training step at the shapes of four models: our kernels in turns with cuBLASLt, the router's in f32,
// and the head with its cross-entropy.
//   dense_bench [FILTER]     models whose name contains FILTER
#include <fmt/format.h>

#include "bench/kernels/cuda/models.h"
#include "bench/kernels/cuda/timing.cuh"
#include "cistron/cuda/gemm/cublaslt.h"
#include "cistron/ops/cross_entropy.h"
#include "cistron/ops/matmul.h"
#include "tests/cuda/device_tensor.cuh"

namespace cistron::bench {
namespace {

using test::DeviceTensor;

class CardMemory : public MemorySource {
 public:
  std::byte* allocate(int64_t bytes) override {
    void* data = nullptr;
    CISTRON_CUDA_CHECK(cudaMalloc(&data, static_cast<size_t>(bytes)));
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, int64_t) override { cudaFree(data); }
};

struct Bench {
  Context ctx = test::cuda_context();
  CardMemory memory;
  DeviceTensor workspace{{ops::kDenseWorkspaceBytes}, DType::kU8};

  /// One of y = x w^T (forward), dx = dy w (dgrad), dw += dy^T x (wgrad) for a layer of n outputs and k inputs.
  void product(const std::string& name, char kind, int64_t t, int64_t n, int64_t k, DType dtype) {
    const bool wgrad = kind == 'w';
    const Shape out_shape = wgrad ? Shape{n, k} : kind == 'f' ? Shape{t, n} : Shape{t, k};
    const DType out_dtype = wgrad ? DType::kF32 : dtype;
    const Shape a_shape = kind == 'f' ? Shape{t, k} : Shape{t, n};
    const Shape b_shape = wgrad ? Shape{t, k} : Shape{n, k};
    const DeviceTensor a = test::random_device_tensor(a_shape, dtype, {1}), b = test::random_device_tensor(b_shape, dtype, {2});
    const DeviceTensor out(out_shape, out_dtype);
    test::zero(out);
    const cuda::DenseProduct p{.in = dtype,
                               .a = {.data = a.get().raw(), .pitch = a_shape[1], .along = !wgrad},
                               .b = {.data = b.get().raw(), .pitch = b_shape[1], .along = kind == 'f'},
                               .out = out.get().raw(),
                               .out_dtype = out_dtype,
                               .out_pitch = out_shape[1],
                               .m = out_shape[0],
                               .n = out_shape[1],
                               .k = wgrad ? t : a_shape[1],
                               .workspace = workspace.get().raw()};
    const double work = 2.0 * static_cast<double>(t) * static_cast<double>(n) * static_cast<double>(k);
    std::vector<Entry> entries;
    if (cuda::sm90::dense_takes(p)) entries.push_back({"wgmma", work, [&, p] { cuda::sm90::dense(ctx, p); }});
    if (dtype == DType::kF32) entries.push_back({"simt", work, [&, p] { cuda::simt_dense(ctx, p); }});
    if (cuda::skinny_takes(p)) entries.push_back({"skinny", work, [&, p] { cuda::skinny_dense(ctx, p); }});
    if (cuda::cublaslt::dense(ctx, p)) entries.push_back({"cublasLt", work, [&, p] { cuda::cublaslt::dense(ctx, p); }});
    take_turns(entries, 9);
    const double moved = static_cast<double>(a.get().bytes() + b.get().bytes() + out.get().bytes());
    fmt::print("{:36} {:6} {:6} {:6}", name, t, n, k);
    for (const Entry& e : entries)
      fmt::print("  {} {:7.4f} ms {:6.1f} TFLOP/s {:5.0f} GB/s", e.name, e.median_ms(), e.rate(), moved / e.median_ms() / 1e6);
    fmt::print("\n");
    std::fflush(stdout);
  }

  void layer(const std::string& name, int64_t t, int64_t n, int64_t k, DType dtype) {
    product(name + " forward", 'f', t, n, k, dtype);
    product(name + " dgrad", 'd', t, n, k, dtype);
    product(name + " wgrad", 'w', t, n, k, dtype);
  }

  void cross_entropy(const ModelShape& m) {
    ctx.arena = Arena::planned("bench", ctx.device, memory, int64_t{3} << 30);
    const DeviceTensor x = test::random_device_tensor({m.tokens(), m.hidden}, DType::kBF16, {1});
    const DeviceTensor w = test::random_device_tensor({m.vocabulary, m.hidden}, DType::kBF16, {2, 0.02F});
    std::vector<int32_t> some(static_cast<size_t>(m.tokens()));
    for (size_t i = 0; i < some.size(); ++i) some[i] = static_cast<int32_t>(i * 7919 % static_cast<size_t>(m.vocabulary));
    const DeviceTensor labels(some), weight = test::random_device_tensor({m.tokens()}, DType::kF32, {3});
    const DeviceTensor nll({m.tokens()}, DType::kF32), loss({1}, DType::kF64), dx({m.tokens(), m.hidden}, DType::kBF16);
    const DeviceTensor dw({m.vocabulary, m.hidden}, DType::kF32), state({sizeof(StepState)}, DType::kU8);
    test::zero(loss);
    const StepState host{.loss_scale = 1e-4F};
    CISTRON_CUDA_CHECK(cudaMemcpy(state.get().raw(), &host, sizeof(host), cudaMemcpyDefault));
    const double work = 6.0 * static_cast<double>(m.tokens()) * static_cast<double>(m.hidden * m.vocabulary);
    std::vector<Entry> entries = {{"head", work, [&] {
                                     ops::linear_cross_entropy(ctx, {.x = x,
                                                                     .w = w,
                                                                     .labels = labels,
                                                                     .loss_weight = weight,
                                                                     .nll = nll,
                                                                     .loss = loss,
                                                                     .state = static_cast<const StepState*>(state.get().raw()),
                                                                     .dx = dx,
                                                                     .dw = {dw, false}});
                                   }}};
    take_turns(entries, 5);
    fmt::print("{:36} {:6} {:6} {:6}  {:7.4f} ms {:6.1f} TFLOP/s, {} MiB of scratch\n",
               fmt::format("{} head with cross-entropy", m.name), m.tokens(), m.vocabulary, m.hidden, entries[0].median_ms(),
               entries[0].rate(), ctx.arena->peak() >> 20);
    std::fflush(stdout);
    ctx.arena = nullptr;
  }

  void model(const ModelShape& m) {
    const std::string name = m.name;
    layer(name + " qkv", m.tokens(), (m.heads + 2 * m.kv_heads) * m.head_dim, m.hidden, DType::kBF16);
    layer(name + " out", m.tokens(), m.hidden, m.heads * m.head_dim, DType::kBF16);
    layer(name + " router", m.tokens(), m.experts, m.hidden, DType::kF32);
    cross_entropy(m);
  }
};

}  // namespace
}  // namespace cistron::bench

int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  const std::string& problem = cistron::cuda::cublaslt::problem();
  fmt::print("cublasLt: {}\n", problem.empty() ? "found" : problem);
  cistron::bench::Bench bench;
  for (const auto& m : cistron::bench::kModels)
    if (std::string(m.name).find(filter) != std::string::npos) bench.model(m);
}
