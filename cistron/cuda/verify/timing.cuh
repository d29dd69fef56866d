#pragma once
// Times of several launches that take turns, so that a card that warms up and throttles treats all alike.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda::verify {

struct Entry {
  std::string name;
  double work;  // floating-point operations, or bytes
  std::function<void()> launch;
  std::vector<float> times = {};

  [[nodiscard]] double median_ms() const {
    std::vector<float> sorted = times;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  [[nodiscard]] double rate() const { return work / median_ms() / 1e9; }
};

/// Two turns unmeasured, then `turns` measured ones. Each launch is queued behind the last, so that none waits for the host.
inline void take_turns(std::vector<Entry>& entries, int turns) {
  std::vector<cudaEvent_t> events(entries.size() + 1);
  for (cudaEvent_t& event : events) CISTRON_CUDA_CHECK(cudaEventCreate(&event));
  for (int turn = -2; turn < turns; ++turn) {
    CISTRON_CUDA_CHECK(cudaEventRecord(events[0]));
    for (size_t i = 0; i < entries.size(); ++i) {
      entries[i].launch();
      CISTRON_CUDA_CHECK(cudaEventRecord(events[i + 1]));
    }
    CISTRON_CUDA_CHECK(cudaEventSynchronize(events.back()));
    for (size_t i = 0; i < entries.size() && turn >= 0; ++i) {
      float ms = 0;
      CISTRON_CUDA_CHECK(cudaEventElapsedTime(&ms, events[i], events[i + 1]));
      entries[i].times.push_back(ms);
    }
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
}

}  // namespace cistron::cuda::verify
