#include <random>

#include "cistron/cuda/bench/kernels.h"
#include "cistron/cuda/gemm/cublaslt.h"
#include "cistron/cuda/verify/mx_operands.cuh"
#include "cistron/cuda/verify/reference.cuh"
#include "cistron/cuda/verify/timing.cuh"
#include "cistron/ops/grouped_gemm.h"
#include "cistron/ops/matmul.h"
#include "cistron/ops/mxfp8_grouped_gemm.h"

namespace cistron::cuda {
namespace {

using namespace verify;  // NOLINT(google-build-using-namespace)

// With f32 results: bf16 products, MXFP8's with groups of 128 and of 32; bf16 results are rounded once more.
constexpr double kBf16Error = 1e-5, kGroup128Error = 6e-4, kGroup32Error = 4e-4, kRounding = 1.7e-3;

std::vector<int32_t> counts_by_chance(int64_t experts, int64_t rows) {
  std::vector<int32_t> counts(static_cast<size_t>(experts));
  std::mt19937 generator(7);
  for (int64_t i = 0; i < rows; ++i) ++counts[generator() % counts.size()];
  return counts;
}

DenseProduct dense_bf16(const void* a, const void* b, void* out, int64_t m, int64_t n, int64_t k) {
  return {.in = DType::kBF16,
          .a = {.data = a, .pitch = k},
          .b = {.data = b, .pitch = k},
          .out = out,
          .out_dtype = DType::kBF16,
          .out_pitch = n,
          .m = m,
          .n = n,
          .k = k};
}

/// A timed kernel: ours, or a peer that writes the same output.
struct Candidate {
  std::string variant;
  std::function<void()> launch;
};

class Bench {
 public:
  Bench(const KernelBench& options, const std::function<void(const KernelTime&)>& report)
      : o_(options), report_(report), groups_(counts_by_chance(o_.experts, o_.rows)) {
    ctx_.gemm = o_.gemm;
    // What the portable MXFP8 products decode, and a GiB's quantised copies.
    const int64_t decoded =
        2 * (2 * o_.experts * o_.intermediate * o_.hidden + groups_.rows() * (2 * o_.intermediate + o_.hidden));
    ctx_.arena = Arena::planned("bench", ctx_.device, memory_, decoded + (int64_t{2} << 30));
  }

  void run() {
    const int64_t h = o_.hidden;
    const int64_t f = o_.intermediate;
    linear("fc1", 2 * f, h);
    linear("fc2", h, f);
    for (const int64_t group : {128, 32}) {
      mxfp8_rows("fc1", 2 * f, h, group, 2);
      mxfp8_rows("fc2", h, f, group, 1);
      mxfp8_rows("dgrad of fc2", f, h, group, 1);
      mxfp8_rows("dgrad of fc1", h, 2 * f, group, 1);
    }
    mxfp8_wgrads("fc1", 2 * f, h);
    mxfp8_wgrads("fc2", h, f);
    for (const int64_t group : {128, 32}) quantise(group);
  }

 private:
  class CardMemory : public MemorySource {
   public:
    std::byte* allocate(int64_t bytes) override {
      void* data = nullptr;
      CISTRON_CUDA_CHECK(cudaMalloc(&data, static_cast<size_t>(bytes)));
      return static_cast<std::byte*>(data);
    }
    void release(std::byte* data, int64_t) override { cudaFree(data); }
  };

  [[nodiscard]] bool wanted(const std::string& recipe, const std::string& name) const {
    return (recipe + " " + name).find(o_.only) != std::string::npos;
  }
  [[nodiscard]] std::string ours() const {
    return ctx_.gemm == GemmKernels::kAuto && compute_capability(ctx_) == 90 ? "sm90" : "portable";
  }

  /// Ours, and cuBLASLt expert by expert where it is found and takes all of these.
  [[nodiscard]] std::vector<Candidate> candidates(std::function<void()> launch, std::vector<DenseProduct> peer = {}) {
    std::vector<Candidate> all = {{ours(), std::move(launch)}};
    for (DenseProduct& p : peer) {
      p.workspace = workspace_.get().raw();
      if (!cublaslt::dense(ctx_, p)) return all;
    }
    if (!peer.empty())
      all.push_back({"cublaslt loop", [this, peer = std::move(peer)] {
                       for (const DenseProduct& p : peer) cublaslt::dense(ctx_, p);
                     }});
    return all;
  }

  /// The products of one layer with weights [E, n, k].
  void linear(const std::string& layer, int64_t n, int64_t k) {
    const std::string dgrad = "dgrad of " + layer;
    if (wanted("bf16", layer)) {
      const auto w = bf16_tensor({o_.experts, n, k}, 1), x = bf16_tensor({groups_.rows(), k}, 2);
      const DeviceTensor y({groups_.rows(), n}, DType::kBF16);
      rows_products(layer, x, w, y, k, false,
                    [&] { ops::grouped_gemm_forward(ctx_, {.x = x, .w = w, .groups = groups_.groups, .out = y}); });
    }
    if (wanted("bf16", dgrad)) {
      const auto w = bf16_tensor({o_.experts, n, k}, 1), dy = bf16_tensor({groups_.rows(), n}, 2);
      const DeviceTensor dx({groups_.rows(), k}, DType::kBF16);
      rows_products(dgrad, dy, w, dx, n, true,
                    [&] { ops::grouped_gemm_dgrad(ctx_, {.dy = dy, .w = w, .groups = groups_.groups, .out = dx}); });
    }
    for (const bool accumulate : {false, true}) {
      const std::string name = "wgrad of " + layer + (accumulate ? ", adding" : "");
      if (!wanted("bf16", name)) continue;
      const auto dy = bf16_tensor({groups_.rows(), n}, 1), x = bf16_tensor({groups_.rows(), k}, 2);
      for (const Tensor& t : {dy.get(), x.get()}) set_pad_rows(t, groups_, 0);
      const DeviceTensor dw({o_.experts, n, k}, DType::kF32);
      std::vector<DenseProduct> peer;
      each_expert([&](int64_t e, int64_t first, int64_t count) {
        DenseProduct p = dense_bf16(row(dy, first), row(x, first), dw.get().data<float>() + e * n * k, n, k, count);
        p.a = {.data = row(dy, first), .pitch = n, .along = false};
        p.b = {.data = row(x, first), .pitch = k, .along = false};
        p.out_dtype = DType::kF32;
        p.accumulate = accumulate;
        peer.push_back(p);
      });
      const RefProduct p = ref_product(ref_operand(dy, true), ref_operand(x, true), dw, groups_);
      measure("bf16", name, work(n, k), dw, p, kBf16Error,
              candidates(
                  [&] {
                    ops::grouped_gemm_wgrad(ctx_,
                                            {.dy = dy, .x = x, .groups = groups_.groups, .out = dw, .accumulate = accumulate});
                  },
                  peer));
    }
  }

  /// out [R, n] = x [R, k] times each expert's weight, along its lines or across them.
  void rows_products(const std::string& name, const Tensor& x, const Tensor& w, const Tensor& out, int64_t k, bool across,
                     std::function<void()> launch) {
    const int64_t n = out.dim(1);
    std::vector<DenseProduct> peer;
    each_expert([&](int64_t e, int64_t first, int64_t count) {
      DenseProduct p = dense_bf16(row(x, first), row(w, 0), row(out, first), count, n, k);
      p.b = {.data = w.data<bf16>() + e * n * k, .pitch = across ? n : k, .along = !across};
      peer.push_back(p);
    });
    RefProduct p = ref_product(ref_operand(x), ref_operand(w, across), out, groups_);
    p.k = k;
    measure("bf16", name, work(n, k), out, p, kBf16Error + kRounding, candidates(std::move(launch), peer));
  }

  void mxfp8_rows(const std::string& name, int64_t n, int64_t k, int64_t group, int64_t sections) {
    const std::string recipe = fmt::format("mxfp8/{}", group);
    if (!wanted(recipe, name)) return;
    const auto x = random_activation(groups_.rows(), k, group, {});
    const auto w = random_weight(o_.experts, n, k, group, sections, other({}));
    const DeviceTensor out({groups_.rows(), n}, DType::kBF16);
    RefProduct p = ref_product(ref_operand(x.operand), ref_operand(w.operand), out, groups_);
    p.k = k;
    measure(recipe, name, work(n, k), out, p, (group == 32 ? kGroup32Error : kGroup128Error) + kRounding, candidates([&] {
              ops::mxfp8_grouped_gemm(ctx_, {.x = x.operand, .w = w.operand, .groups = groups_.groups, .out = out});
            }));
  }

  /// dw [E, n, k] = dy [n, R] x [k, R]^T over each expert's rows.
  void mxfp8_wgrads(const std::string& layer, int64_t n, int64_t k) {
    for (const bool accumulate : {false, true}) {
      const std::string name = "wgrad of " + layer + (accumulate ? ", adding" : "");
      if (!wanted("mxfp8/128", name)) continue;
      const auto dy = random_activation(n, groups_.rows(), 128, {});
      const auto x = random_activation(k, groups_.rows(), 128, other({}));
      for (const auto& operand : {dy.operand, x.operand}) set_pad(operand, groups_, true, 0);
      const DeviceTensor dw({o_.experts, n, k}, DType::kF32);
      const RefProduct p = ref_product(ref_operand(dy.operand), ref_operand(x.operand), dw, groups_);
      measure("mxfp8/128", name, work(n, k), dw, p, kGroup128Error, candidates([&] {
                ops::mxfp8_grouped_wgrad(
                    ctx_, {.dy = dy.operand, .x = x.operand, .groups = groups_.groups, .out = dw, .accumulate = accumulate});
              }));
    }
  }

  /// 1 GiB of bf16 to rows and columns. Their bits are compared with the processor's in the tests.
  void quantise(int64_t group) {
    const std::string recipe = fmt::format("mxfp8/{}", group);
    const std::string name = "quantise rows and columns";
    if (!wanted(recipe, name)) return;
    constexpr int64_t kRows = 131072, kDepth = 4096;
    constexpr double kValues = static_cast<double>(kRows) * kDepth;
    const DeviceTensor x[2] = {bf16_tensor({kRows, kDepth}, 1), bf16_tensor({kRows, kDepth}, 2)};
    const auto out = ops::mxfp8_empty(ctx_, kRows, kDepth, group);
    const DeviceTensor copied({kRows, kDepth}, DType::kBF16);
    int turn = 0;
    const auto next = [&]() -> const Tensor& { return x[++turn % 2]; };
    std::vector<Entry> entries = {
        {"C", 4 * kValues,
         [&] { CISTRON_CUDA_CHECK(cudaMemcpyAsync(copied.get().raw(), next().raw(), 2 * kRows * kDepth, cudaMemcpyDefault)); }},
        {"", 4 * kValues + 2 * kValues / static_cast<double>(group),
         [&] { ops::mxfp8_quantize(ctx_, {.x = next(), .out = out}); }}};
    take_turns(entries, o_.turns);
    report_({.name = name,
             .recipe = recipe,
             .variant = "cuda",
             .milliseconds = entries[1].median_ms(),
             .rate = 1e3 * entries[1].rate(),
             .moves_bytes = true,
             .ceiling = 1e3 * entries[0].rate()});
  }

  void measure(const std::string& recipe, const std::string& name, double flops, const Tensor& out, const RefProduct& reference,
               double tolerance, const std::vector<Candidate>& candidates) {
    std::vector<Entry> entries;
    std::vector<double> errors;
    for (const Candidate& c : candidates) {
      zero(out);
      c.launch();
      errors.push_back(deviation(reference, 20000).relative());
      entries.push_back({c.variant, flops, c.launch});
    }
    if (dense_found_) entries.push_back({"D", 2.0 * kDense * kDense * kDense, [this] { cublaslt::dense(ctx_, dense_); }});
    take_turns(entries, o_.turns);
    for (size_t i = 0; i < candidates.size(); ++i)
      report_({.name = name,
               .recipe = recipe,
               .variant = entries[i].name,
               .milliseconds = entries[i].median_ms(),
               .rate = entries[i].rate(),
               .ceiling = dense_found_ ? entries.back().rate() : 0,
               .error = errors[i],
               .right = errors[i] <= tolerance});
  }

  template <class F>
  void each_expert(F f) const {
    for (size_t e = 0; e < groups_.counts.size(); ++e)
      if (groups_.counts[e] > 0) f(static_cast<int64_t>(e), groups_.starts[e], groups_.counts[e]);
  }
  static DeviceTensor bf16_tensor(const Shape& shape, uint64_t seed) {
    return random_device_tensor(shape, DType::kBF16, {.seed = seed});
  }
  static void* row(const Tensor& t, int64_t r) { return static_cast<char*>(t.raw()) + r * t.dim(t.shape().rank() - 1) * 2; }
  [[nodiscard]] double work(int64_t n, int64_t k) const {
    return 2.0 * static_cast<double>(groups_.total()) * static_cast<double>(n) * static_cast<double>(k);
  }

  static constexpr int64_t kDense = 8192;
  KernelBench o_;
  const std::function<void(const KernelTime&)>& report_;
  TestGroups groups_;
  CardMemory memory_;
  Context ctx_ = cuda_context();
  DeviceTensor workspace_{{ops::kDenseWorkspaceBytes}, DType::kU8};
  DeviceTensor dense_a_ = bf16_tensor({kDense, kDense}, 1), dense_b_ = bf16_tensor({kDense, kDense}, 2);
  DeviceTensor dense_out_{{kDense, kDense}, DType::kBF16};
  DenseProduct dense_ = [this] {
    DenseProduct p = dense_bf16(dense_a_.get().raw(), dense_b_.get().raw(), dense_out_.get().raw(), kDense, kDense, kDense);
    p.workspace = workspace_.get().raw();
    return p;
  }();
  bool dense_found_ = cublaslt::dense(ctx_, dense_);
};

}  // namespace

void bench_kernels(const KernelBench& options, const std::function<void(const KernelTime&)>& report) {
  if (device_count() == 0)
    throw Error(ErrorKind::kUsage, "bench kernels times CUDA kernels", "no CUDA card here",
                "cistron doctor says what is missing");
  Bench(options, report).run();
}

}  // namespace cistron::cuda
