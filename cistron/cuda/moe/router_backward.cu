// dlogits[e] = p[e] (dprobs[e] - sum p dprobs + dlse), and for the chosen ones + w[j] (dw[j] - sum w dw).
#include "cistron/cuda/moe/router.cuh"

namespace cistron::cuda {
namespace {

using device::kWarp;

struct BackwardTokens {
  const float *probs, *lse;
  const int32_t* experts;
  const float *weights, *dweights;
  const double* stats;
  float* dlogits;
  int32_t tokens, num_experts, top_k;
  float aux_coefficient, z_coefficient;
};

/// dprobs [E]: coefficient E f_e / N, from the whole batch's sums. Gives 2 z_coefficient / N.
__device__ float auxiliary_gradients(const BackwardTokens& p, float* dprobs) {
  const double routings = p.stats[2 * p.num_experts + 2];
  const double scale = routings == 0 ? 0 : p.aux_coefficient * static_cast<double>(p.num_experts) / (routings * routings);
  for (int e = static_cast<int>(threadIdx.x); e < p.num_experts; e += kRouterThreads)
    dprobs[e] = static_cast<float>(scale * p.stats[e]);
  __syncthreads();
  return routings == 0 ? 0.0F : static_cast<float>(2.0 * p.z_coefficient / routings);
}

template <int kExperts>
__global__ void __launch_bounds__(kRouterThreads) backward_kernel(BackwardTokens p) {
  __shared__ float dprobs[kExperts * kWarp];
  const float dlse_per_lse = auxiliary_gradients(p, dprobs);
  const int64_t token = int64_t{blockIdx.x} * kRouterTokens + device::warp_index();
  if (token >= p.tokens) return;
  const float* probs = p.probs + token * p.num_experts;
  float row[kExperts];
  float mean = 0;
#pragma unroll
  for (int i = 0; i < kExperts; ++i) {
    const int e = device::lane_index() + i * kWarp;
    row[i] = e < p.num_experts ? probs[e] : 0.0F;
    if (e < p.num_experts) mean += row[i] * dprobs[e];
  }
  mean = device::warp_sum(mean);
  const float dlse = dlse_per_lse * p.lse[token];
  float* dlogits = p.dlogits + token * p.num_experts;
#pragma unroll
  for (int i = 0; i < kExperts; ++i) {
    const int e = device::lane_index() + i * kWarp;
    if (e < p.num_experts) dlogits[e] = row[i] * (dprobs[e] - mean + dlse);
  }
  const int64_t first = token * p.top_k;
  const float dot = sum_of_choices(p.top_k, [&](int j) { return p.weights[first + j] * p.dweights[first + j]; });
  __syncwarp();  // what lanes wrote, others add to
  for (int j = device::lane_index(); j < p.top_k; j += kWarp) {
    const uint32_t expert = static_cast<uint32_t>(p.experts[first + j]);
    if (expert < static_cast<uint32_t>(p.num_experts)) dlogits[expert] += p.weights[first + j] * (p.dweights[first + j] - dot);
  }
}

}  // namespace

void router_backward(Context& ctx, const ops::RouterBackward& args) {
  const DeviceGuard guard(ctx);
  const BackwardTokens p{.probs = device::pointer<const float>(args.probs),
                         .lse = device::pointer<const float>(args.lse),
                         .experts = device::pointer<const int32_t>(args.experts),
                         .weights = device::pointer<const float>(args.weights),
                         .dweights = device::pointer<const float>(args.dweights),
                         .stats = device::pointer<const double>(args.stats),
                         .dlogits = device::pointer<float>(args.dlogits),
                         .tokens = narrow<int32_t>(args.probs.dim(0)),
                         .num_experts = narrow<int32_t>(args.probs.dim(1)),
                         .top_k = narrow<int32_t>(args.experts.dim(1)),
                         .aux_coefficient = args.aux_coefficient,
                         .z_coefficient = args.z_coefficient};
  if (p.tokens == 0) return;
  with_lane_experts("router_backward", p.num_experts, [&](auto experts) {
    backward_kernel<experts><<<device::blocks_for(p.tokens, kRouterTokens), kRouterThreads, 0, stream(ctx)>>>(p);
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace cistron::cuda
