// Each block sums some tokens, in f64, thread by thread and then in the threads' order; then the blocks' sums are added up.
#include "cistron/cuda/device/lines.cuh"
#include "cistron/cuda/moe/router.cuh"

namespace cistron::cuda {
namespace {

constexpr int kThreads = 256;

struct StatsTokens {
  const float *probs, *lse;
  const int32_t* experts;
  double* partial;  // [blocks, 2E + 3], laid out as `stats`
  int32_t tokens, num_experts, top_k;
};

/// sums[e] of p over the tokens; gives this thread's part of the entropy. Threads are laid out as (tokens, experts).
__device__ double add_probs(const StatsTokens& p, int begin, int end, double* sums) {
  __shared__ double column[kThreads];
  const int across = min(kThreads, 1 << (32 - __clz(p.num_experts - 1)));  // a power of two that holds E, or all threads
  const int lanes = kThreads / across, lane = static_cast<int>(threadIdx.x) / across;
  double entropy = 0;
  for (int first = 0; first < p.num_experts; first += across) {
    const int e = first + static_cast<int>(threadIdx.x) % across;
    double sum = 0;
    for (int t = begin + lane; t < end && e < p.num_experts; t += lanes) {
      const float prob = p.probs[int64_t{t} * p.num_experts + e];
      sum += prob;
      if (prob != 0) entropy -= static_cast<double>(prob) * static_cast<double>(logf(prob));
    }
    __syncthreads();
    column[threadIdx.x] = sum;
    __syncthreads();
    if (lane > 0 || e >= p.num_experts) continue;
    for (int other = 1; other < lanes; ++other) sum += column[other * across + threadIdx.x];
    sums[e] = sum;
  }
  return entropy;
}

__global__ void __launch_bounds__(kThreads) stats_kernel(StatsTokens p, int tokens_per_block) {
  __shared__ double shared[kThreads / device::kWarp];
  __shared__ int32_t choices[kMaxExperts];
  const int tid = static_cast<int>(threadIdx.x);
  const int begin = min(p.tokens, static_cast<int>(blockIdx.x) * tokens_per_block), end = min(p.tokens, begin + tokens_per_block);
  double* sums = p.partial + int64_t{blockIdx.x} * (2 * p.num_experts + 3);
  for (int e = tid; e < p.num_experts; e += kThreads) choices[e] = 0;
  __syncthreads();
  for (int64_t i = int64_t{begin} * p.top_k + tid; i < int64_t{end} * p.top_k; i += kThreads) {
    const auto expert = static_cast<uint32_t>(p.experts[i]);
    if (expert < static_cast<uint32_t>(p.num_experts)) atomicAdd(&choices[expert], 1);  // of integers: any order gives the same
  }
  const double entropy = device::line_sum(add_probs(p, begin, end, sums + p.num_experts), shared);
  double squares = 0;
  for (int t = begin + tid; t < end; t += kThreads) squares += static_cast<double>(p.lse[t]) * static_cast<double>(p.lse[t]);
  squares = device::line_sum(squares, shared);
  for (int e = tid; e < p.num_experts; e += kThreads) sums[e] = choices[e];
  if (tid > 0) return;
  sums[2 * p.num_experts] = squares;
  sums[2 * p.num_experts + 1] = entropy;
  sums[2 * p.num_experts + 2] = end - begin;
}

}  // namespace

void router_stats(Context& ctx, const ops::RouterStats& args) {
  const DeviceGuard guard(ctx);
  const int64_t blocks = args.partial.dim(0);
  const StatsTokens p{.probs = device::pointer<const float>(args.probs),
                      .lse = device::pointer<const float>(args.lse),
                      .experts = device::pointer<const int32_t>(args.experts),
                      .partial = device::pointer<double>(args.partial),
                      .tokens = narrow<int32_t>(args.probs.dim(0)),
                      .num_experts = narrow<int32_t>(args.probs.dim(1)),
                      .top_k = narrow<int32_t>(args.experts.dim(1))};
  CISTRON_CHECK(p.num_experts <= kMaxExperts, "[router_stats] {} experts; on CUDA at most {}", p.num_experts, kMaxExperts);
  stats_kernel<<<narrow<uint32_t>(blocks), kThreads, 0, stream(ctx)>>>(p, narrow<int>(ceil_div(p.tokens, blocks)));
  CISTRON_CUDA_CHECK(cudaGetLastError());
  device::column_sums(ctx, p.partial, blocks, args.stats.numel(), device::pointer<double>(args.stats), /*accumulate=*/true);
}

}  // namespace cistron::cuda
