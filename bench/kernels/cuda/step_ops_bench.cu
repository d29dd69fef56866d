// The step's small operations at the shapes of two models, each in turns with the device copy (C). Bytes are what has to move:
// every operand read once and every result written once; rows that are gathered count once for each copy. Working sets far beyond
// L2, except where a line shows few bytes.
#include <fmt/format.h>

#include "bench/kernels/cuda/timing.cuh"
#include "cistron/ops/attention.h"
#include "cistron/ops/elementwise.h"
#include "cistron/ops/embedding.h"
#include "cistron/ops/gather.h"
#include "cistron/ops/optimizer.h"
#include "cistron/ops/rms_norm.h"
#include "cistron/ops/router.h"
#include "cistron/ops/swiglu.h"
#include "tests/cuda/device_tensor.cuh"

namespace cistron::bench {
namespace {

struct ModelShape {
  const char* name;
  int64_t tokens, hidden, experts, top_k, intermediate;
  ops::AttentionShape heads;
  int64_t vocabulary;
};
constexpr ModelShape kModels[] = {{"mixtral", 16384, 4096, 8, 2, 14336, {32, 8, 128}, 32000},
                                  {"fine-grained-64", 16384, 2048, 64, 8, 1024, {16, 4, 128}, 512}};

class CardMemory : public MemorySource {
 public:
  std::byte* allocate(int64_t bytes) override {
    void* data = nullptr;
    CISTRON_CUDA_CHECK(cudaMalloc(&data, static_cast<size_t>(bytes)));
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, int64_t) override { cudaFree(data); }
};

class Bench {
 public:
  Bench() {
    ctx_ = test::cuda_context();
    ctx_.precision = Precision::kBF16;
    ctx_.arena = Arena::planned("bench", ctx_.device, memory_, int64_t{48} << 30);
    from_ = random({kCopy}, DType::kBF16);
    to_ = ctx_.empty({kCopy}, DType::kBF16);
  }

  void elementwise();
  void optimizer();
  void model(const ModelShape& m);

 private:
  static constexpr int64_t kCopy = int64_t{1} << 28;

  Tensor random(const Shape& shape, DType dtype, float scale = 1) {
    Tensor t = ctx_.empty(shape, dtype);
    test::fill(t, {.seed = ++seed_, .scale = scale});
    return t;
  }
  Tensor empty(const Shape& shape, DType dtype) { return ctx_.empty(shape, dtype); }
  ops::AdamWTensor kept(const Tensor& grad, DType master, DType states);
  Tensor ints(int64_t count, int64_t bound) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<int32_t>((i * 2654435761U >> 7) % static_cast<uint64_t>(bound));
    Tensor t = ctx_.empty({count}, DType::kI32);
    CISTRON_CUDA_CHECK(cudaMemcpy(t.raw(), values.data(), values.size() * 4, cudaMemcpyHostToDevice));
    return t;
  }
  void line(const std::string& name, int64_t bytes, const std::function<void()>& launch) {
    std::vector<Entry> entries = {
        {"copy", 4.0 * kCopy,
         [this] { CISTRON_CUDA_CHECK(cudaMemcpyAsync(to_.raw(), from_.raw(), 2 * kCopy, cudaMemcpyDeviceToDevice)); }},
        {name, static_cast<double>(bytes), launch}};
    take_turns(entries, 11);
    fmt::print("| {} | {:.1f} | {:.0f} | {:.0f} | {:.0f} | {:.2f} |\n", name, entries[1].median_ms() * 1e3,
               static_cast<double>(bytes) / 1e6, entries[1].rate() * 1e3, entries[0].rate() * 1e3,
               entries[1].rate() / entries[0].rate());
  }

  CardMemory memory_;
  Context ctx_;
  Tensor from_, to_;
  uint64_t seed_ = 0;
};

void Bench::elementwise() {
  const int64_t n = int64_t{1} << 27;
  const Tensor a = random({n}, DType::kBF16), b = random({n}, DType::kBF16), out = empty({n}, DType::kBF16),
               wide = random({n}, DType::kF32);
  line("cast f32 to bf16", 6 * n, [&] { ops::cast(ctx_, {wide, out}); });
  line("cast bf16 to f32", 6 * n, [&] { ops::cast(ctx_, {a, wide}); });
  line("add bf16", 6 * n, [&] { ops::add(ctx_, {a, b, out}); });
  line("clamp bf16", 4 * n, [&] { ops::clamp(ctx_, {out, 3.0F}); });
  line("clamp_backward bf16", 6 * n, [&] { ops::clamp_backward(ctx_, {a, 1.0F, out}); });
  line("zero f32", 4 * n, [&] { ops::zero(ctx_, {wide}); });
}

ops::AdamWTensor Bench::kept(const Tensor& grad, DType master, DType states) {
  const Shape& shape = grad.shape();
  ops::AdamWTensor t{.master = random(shape, master),
                     .grad = grad,
                     .m = empty(shape, states),
                     .v = empty(shape, states),
                     .weight_decay = 0.1F,
                     .m_scale = empty(ops::scale_shape(shape), DType::kU8),
                     .v_scale = empty(ops::scale_shape(shape), DType::kU8)};
  if (master == DType::kF32) t.working = empty(shape, DType::kBF16);
  for (const Tensor& zeros : {t.m, t.v, t.m_scale, t.v_scale})
    CISTRON_CUDA_CHECK(cudaMemset(zeros.raw(), 0, static_cast<size_t>(zeros.bytes())));
  return t;
}

// 227 tensors, as 32 layers of Mixtral have.
void Bench::optimizer() {
  const int64_t count = 227, n = int64_t{1} << 20;
  std::vector<ops::AdamWTensor> tensors;
  std::vector<Tensor> grads;
  for (int64_t i = 0; i < count; ++i) {
    grads.push_back(random({n}, DType::kF32));
    tensors.push_back({random({n}, DType::kF32), grads.back(), random({n}, DType::kF32), random({n}, DType::kF32),
                       empty({n}, DType::kBF16), 0.1F});
    ops::zero(ctx_, {tensors.back().v});
  }
  StepState start{.step = 1, .learning_rate = 1e-3F, .bias_correction1 = 0.1F, .bias_correction2 = 0.05F, .clip_norm = 1.0F};
  const Tensor state = empty({static_cast<int64_t>(sizeof(start))}, DType::kU8);
  CISTRON_CUDA_CHECK(cudaMemcpy(state.raw(), &start, sizeof(start), cudaMemcpyHostToDevice));
  auto* there = static_cast<StepState*>(state.raw());
  line("grad_norm", 4 * n * count, [&] { ops::grad_norm(ctx_, {grads, there}); });
  line("adamw", 30 * n * count, [&] { ops::adamw(ctx_, {.tensors = tensors, .state = there}); });
  const Shape matrix{256, 4096};
  for (const DType master : {DType::kF32, DType::kBF16})
    for (const DType states : {DType::kBF16, DType::kU8}) {
      int64_t bytes = 0;
      for (size_t i = 0; i < tensors.size(); ++i) {
        tensors[i] = kept(grads[i].reshape(matrix), master, states);
        bytes +=
            2 * (tensors[i].master.bytes() + tensors[i].m.bytes() + tensors[i].v.bytes()) + 4 * n + tensors[i].working.bytes();
      }
      line(fmt::format("adamw, {} weights, {} states", name_of(master), states == DType::kU8 ? "8-bit" : "bf16"), bytes,
           [&] { ops::adamw(ctx_, {.tensors = tensors, .state = there}); });
    }
}

void Bench::model(const ModelShape& m) {
  const int64_t t = m.tokens, h = m.hidden, rows = t * m.top_k, f = m.intermediate, v = m.vocabulary;
  const auto name = [&](const char* op) { return fmt::format("{} {}", m.name, op); };
  const Tensor x = random({t, h}, DType::kBF16), y = random({t, h}, DType::kBF16), out = random({t, h}, DType::kBF16),
               sum = empty({t, h}, DType::kBF16), w = random({h}, DType::kF32), rstd = empty({t}, DType::kF32),
               dw = empty({h}, DType::kF32);
  line(name("rms_norm_forward"), 4 * t * h, [&] { ops::rms_norm_forward(ctx_, {.x = x, .w = w, .out = out, .rstd = rstd}); });
  line(name("add_rms_norm_forward"), 8 * t * h,
       [&] { ops::add_rms_norm_forward(ctx_, {.a = x, .b = y, .w = w, .sum = sum, .out = out, .rstd = rstd}); });
  line(name("rms_norm_backward"), 6 * t * h,
       [&] { ops::rms_norm_backward(ctx_, {.dy = y, .x = x, .w = w, .rstd = rstd, .dx = out, .dw = {dw}}); });
  line(name("rms_norm_backward, adding"), 8 * t * h, [&] {
    ops::rms_norm_backward(ctx_, {.dy = y, .x = x, .w = w, .rstd = rstd, .dx = out, .accumulate_dx = true, .dw = {dw}});
  });

  const Tensor ids = ints(t, v), table = random({v, h}, DType::kBF16), dtable = random({v, h}, DType::kF32);
  line(name("embedding_forward"), 2 * t * h + 2 * std::min(t, v) * h, [&] { ops::embedding_forward(ctx_, {table, ids, out}); });
  line(name("embedding_backward"), 2 * t * h + 4 * v * h, [&] { ops::embedding_backward(ctx_, {x, ids, {dtable}}); });

  const Tensor qkv = random({t, m.heads.qkv_width()}, DType::kBF16), positions = ints(t, 8192);
  line(name("rope"), 4 * t * (m.heads.num_heads + m.heads.num_kv_heads) * m.heads.head_dim,
       [&] { ops::rope(ctx_, {.qkv = qkv, .positions = positions, .shape = m.heads}); });

  const Tensor logits = random({t, m.experts}, DType::kF32), probs = empty({t, m.experts}, DType::kF32),
               lse = empty({t}, DType::kF32), experts = empty({t, m.top_k}, DType::kI32),
               weights = empty({t, m.top_k}, DType::kF32), stats = empty({2 * m.experts + 3}, DType::kF64),
               dweights = random({t, m.top_k}, DType::kF32), dlogits = empty({t, m.experts}, DType::kF32);
  ops::zero(ctx_, {stats});
  line(name("router_forward"), 8 * t * m.experts + 8 * rows + 4 * t,
       [&] { ops::router_forward(ctx_, {logits, probs, lse, experts, weights}); });
  line(name("router_stats"), 4 * t * m.experts + 4 * rows + 4 * t,
       [&] { ops::router_stats(ctx_, {probs, lse, experts, stats}); });
  line(name("router_backward"), 8 * t * m.experts + 12 * rows + 4 * t,
       [&] { ops::router_backward(ctx_, {probs, lse, experts, weights, dweights, stats, 0.01F, 0.001F, dlogits}); });
  const ops::Groups groups = ops::empty_groups(ctx_, t, m.top_k, m.experts);
  line(name("build_groups"), 20 * rows,
       [&] { ops::build_groups(ctx_, {.experts = experts, .weights = weights, .groups = groups}); });

  const int64_t room = groups.max_rows();
  const Tensor routed = random({room, h}, DType::kBF16), dweight = random({room}, DType::kF32);
  line(name("gather"), 4 * rows * h, [&] { ops::gather(ctx_, {x, groups, routed}); });
  line(name("combine"), 2 * rows * h + 2 * t * h, [&] { ops::combine(ctx_, {routed, groups, out}); });
  line(name("combine, adding"), 2 * rows * h + 4 * t * h, [&] { ops::combine(ctx_, {routed, groups, out, true}); });
  line(name("gather_choices"), 12 * rows, [&] { ops::gather_choices(ctx_, {dweight, groups, dweights}); });
  const Tensor gate_up = random({room, 2 * f}, DType::kBF16), act = random({room, f}, DType::kBF16),
               dgate_up = empty({room, 2 * f}, DType::kBF16);
  line(name("scaled_swiglu_forward"), 6 * rows * f, [&] { ops::scaled_swiglu_forward(ctx_, {gate_up, groups, act}); });
  line(name("scaled_swiglu_backward"), 10 * rows * f,
       [&] { ops::scaled_swiglu_backward(ctx_, {act, gate_up, groups, dgate_up, dweight}); });
}

void run() {
  fmt::print("| operation | us | MB | GB/s | C, GB/s | of C |\n|---|---|---|---|---|---|\n");
  Bench bench;
  bench.elementwise();
  bench.optimizer();
  for (const ModelShape& m : kModels) bench.model(m);
}

}  // namespace
}  // namespace cistron::bench

int main() { cistron::bench::run(); }
