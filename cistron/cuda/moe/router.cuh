#pragma once
// A warp has a token; lane l has experts l, l + 32, ... in registers.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/reduce.cuh"
#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/router.h"

namespace cistron::cuda {

constexpr int kRouterThreads = 256;
constexpr int kRouterTokens = kRouterThreads / device::kWarp;  // of a block
constexpr int64_t kMaxExperts = 1024;

/// f(std::integral_constant<int, experts a lane>{}): a power of two that holds E.
template <class F>
void with_lane_experts(const char* op, int64_t experts, F&& f) {
  CISTRON_CHECK(experts <= kMaxExperts, "[{}] {} experts; on CUDA at most {}", op, experts, kMaxExperts);
  if (experts <= 32) return f(std::integral_constant<int, 1>{});
  if (experts <= 64) return f(std::integral_constant<int, 2>{});
  if (experts <= 128) return f(std::integral_constant<int, 4>{});
  if (experts <= 256) return f(std::integral_constant<int, 8>{});
  if (experts <= 512) return f(std::integral_constant<int, 16>{});
  f(std::integral_constant<int, 32>{});
}

/// Adds up a value for each of `count` choices, the same in every lane.
template <class F>
__device__ __forceinline__ float sum_of_choices(int count, F&& value) {
  float sum = 0;
  for (int j = device::lane_index(); j < count; j += device::kWarp) sum += value(j);
  return device::warp_sum(sum);
}

}  // namespace cistron::cuda
