#include "cistron/cuda/moe/router.cuh"

namespace cistron::cuda {
namespace {

using device::kWarp;

struct ForwardTokens {
  const float* logits;
  float *probs, *lse;
  int32_t* experts;
  float* weights;
  int32_t tokens, num_experts, top_k;
  bool replay;
};

/// Softmax of the warp's row in place; gives its logsumexp.
template <int kExperts>
__device__ __forceinline__ float softmax(float (&row)[kExperts], int num_experts) {
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kExperts; ++i)
    if (device::lane_index() + i * kWarp < num_experts && row[i] > largest) largest = row[i];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, offset));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kExperts; ++i) {
    if (device::lane_index() + i * kWarp >= num_experts) continue;
    row[i] = expf(row[i] - largest);
    sum += row[i];
  }
  sum = device::warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kExperts; ++i) row[i] /= sum;
  return largest + logf(sum);
}

/// The largest first, ties to the lowest expert. As whole numbers, probabilities keep their order: NaN comes after every number.
template <int kExperts>
__device__ __forceinline__ void choose(const float (&probs)[kExperts], const ForwardTokens& p, int32_t* chosen) {
  constexpr uint32_t kTaken = 0, kNaN = 1, kNumber = 2;
  uint32_t keys[kExperts];
#pragma unroll
  for (int i = 0; i < kExperts; ++i) {
    keys[i] = isnan(probs[i]) ? kNaN : __float_as_uint(probs[i]) + kNumber;
    if (device::lane_index() + i * kWarp >= p.num_experts) keys[i] = kTaken;
  }
  for (int j = 0; j < p.top_k; ++j) {
    uint32_t best = keys[0];
#pragma unroll
    for (int i = 1; i < kExperts; ++i) best = max(best, keys[i]);
    best = __reduce_max_sync(~0U, best);
    uint32_t expert = UINT32_MAX;
#pragma unroll
    for (int i = kExperts - 1; i >= 0; --i)
      if (keys[i] == best) expert = static_cast<uint32_t>(device::lane_index() + i * kWarp);
    expert = __reduce_min_sync(~0U, expert);
#pragma unroll
    for (int i = 0; i < kExperts; ++i)
      if (expert == static_cast<uint32_t>(device::lane_index() + i * kWarp)) keys[i] = kTaken;
    if (device::lane_index() == 0) chosen[j] = static_cast<int32_t>(expert);
  }
}

template <int kExperts>
__global__ void __launch_bounds__(kRouterThreads) forward_kernel(ForwardTokens p) {
  const int64_t token = int64_t{blockIdx.x} * kRouterTokens + device::warp_index();
  if (token >= p.tokens) return;
  const float* logits = p.logits + token * p.num_experts;
  float row[kExperts];
#pragma unroll
  for (int i = 0; i < kExperts; ++i) {
    const int e = device::lane_index() + i * kWarp;
    row[i] = e < p.num_experts ? logits[e] : 0.0F;
  }
  const float lse = softmax(row, p.num_experts);
  float* probs = p.probs + token * p.num_experts;
#pragma unroll
  for (int i = 0; i < kExperts; ++i) {
    const int e = device::lane_index() + i * kWarp;
    if (e < p.num_experts) probs[e] = row[i];
  }
  int32_t* chosen = p.experts + token * p.top_k;
  if (!p.replay) choose(row, p, chosen);
  if (device::lane_index() == 0) p.lse[token] = lse;
  __syncwarp();  // what lanes wrote, others read
  const auto prob = [&](int j) { return chosen[j] >= 0 && chosen[j] < p.num_experts ? probs[chosen[j]] : NAN; };
  const float sum = sum_of_choices(p.top_k, prob);
  for (int j = device::lane_index(); j < p.top_k; j += kWarp) p.weights[token * p.top_k + j] = prob(j) / sum;
}

}  // namespace

void router_forward(Context& ctx, const ops::RouterForward& args) {
  const DeviceGuard guard(ctx);
  const ForwardTokens p{.logits = device::pointer<const float>(args.logits),
                        .probs = device::pointer<float>(args.probs),
                        .lse = device::pointer<float>(args.lse),
                        .experts = device::pointer<int32_t>(args.experts),
                        .weights = device::pointer<float>(args.weights),
                        .tokens = narrow<int32_t>(args.probs.dim(0)),
                        .num_experts = narrow<int32_t>(args.probs.dim(1)),
                        .top_k = narrow<int32_t>(args.experts.dim(1)),
                        .replay = args.replay};
  if (p.tokens == 0) return;
  with_lane_experts("router_forward", p.num_experts, [&](auto experts) {
    forward_kernel<experts><<<device::blocks_for(p.tokens, kRouterTokens), kRouterThreads, 0, stream(ctx)>>>(p);
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace cistron::cuda
