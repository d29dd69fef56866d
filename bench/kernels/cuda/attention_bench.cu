// Attention forward and backward at the shapes of four models, causal, each path in turns.
//   attention_bench [FILTER]     models whose name contains FILTER
#include <fmt/format.h>

#include "bench/kernels/cuda/models.h"
#include "bench/kernels/cuda/timing.cuh"
#include "cistron/cuda/attention/flash.h"
#include "cistron/cuda/attention/sm90_flash.h"
#include "tests/cuda/device_tensor.cuh"

namespace cistron::bench {
namespace {

using test::DeviceTensor;

struct Bench {
  Context ctx = test::cuda_context();
  ModelShape m;
  ops::AttentionShape shape{m.heads, m.kv_heads, m.head_dim};
  int64_t tokens = m.tokens();
  float scale = 1.0F / std::sqrt(static_cast<float>(m.head_dim));
  DeviceTensor qkv = test::random_device_tensor({tokens, shape.qkv_width()}, DType::kBF16, {1});
  DeviceTensor dout = test::random_device_tensor({tokens, shape.out_width()}, DType::kBF16, {2});
  DeviceTensor cu_seqlens{sequences()};
  DeviceTensor out{{tokens, shape.out_width()}, DType::kBF16};
  DeviceTensor dqkv{{tokens, shape.qkv_width()}, DType::kBF16};
  DeviceTensor lse{{m.heads, tokens}, DType::kF32};
  DeviceTensor delta{{m.heads, tokens}, DType::kF32};

  [[nodiscard]] std::vector<int32_t> sequences() const {
    std::vector<int32_t> ends;
    for (int64_t s = 0; s <= m.batch; ++s) ends.push_back(static_cast<int32_t>(s * m.sequence));
    return ends;
  }
  [[nodiscard]] ops::AttentionForward forward() const {
    return {.qkv = qkv, .cu_seqlens = cu_seqlens, .shape = shape, .scale = scale, .causal = true, .out = out, .lse = lse};
  }
  [[nodiscard]] ops::AttentionBackward backward() const {
    return {.dout = dout,
            .qkv = qkv,
            .out = out,
            .lse = lse,
            .cu_seqlens = cu_seqlens,
            .shape = shape,
            .scale = scale,
            .causal = true,
            .dqkv = dqkv,
            .delta = delta};
  }
  /// Products of the pairs that a causal mask leaves: two forward, five backward.
  [[nodiscard]] double work(int products) const {
    return 2.0 * products * static_cast<double>(m.batch * m.heads * m.head_dim) * m.sequence * (m.sequence + 1) / 2;
  }

  void run() {
    std::vector<Entry> entries;
    const auto path = [&](const char* name, bool takes, const auto& forward_path, const auto& backward_path) {
      if (!takes) return;
      entries.push_back({fmt::format("forward, {}", name), work(2), [&, forward_path] { forward_path(ctx, forward()); }});
      entries.push_back({fmt::format("backward, {}", name), work(5), [&, backward_path] {
                           cuda::flash::delta(ctx, backward());
                           backward_path(ctx, backward());
                         }});
    };
    path("mma.sync", cuda::flash::mma_takes(ctx, DType::kBF16, shape), cuda::flash::mma_forward, cuda::flash::mma_backward);
    path("wgmma", cuda::flash::sm90::takes(DType::kBF16, shape), cuda::flash::sm90::forward, cuda::flash::sm90::backward);
    take_turns(entries, 7);
    for (const Entry& e : entries)
      fmt::print("{:16} {:24} {:8.3f} ms {:7.1f} TFLOP/s\n", m.name, e.name, e.median_ms(), e.rate());
    std::fflush(stdout);
  }
};

}  // namespace
}  // namespace cistron::bench

int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  for (const auto& m : cistron::bench::kModels)
    if (std::string(m.name).find(filter) != std::string::npos) cistron::bench::Bench{.m = m}.run();
}
