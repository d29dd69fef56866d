#include <deque>

#include "cistron/cuda/runtime/runtime.h"
#include "cistron/ops/timer.h"

namespace cistron::cuda {
namespace {

__global__ void pause_kernel(long long nanoseconds) {
  long long now = 0, start = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    __nanosleep(1000);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

class Event {
 public:
  Event() { CISTRON_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class EventTimer final : public ops::DeviceTimer {
 public:
  explicit EventTimer(const Context& ctx) : index_(ctx.device.index), stream_(stream(ctx)) {}

  void start(double pause_milliseconds) override {
    const DeviceGuard guard(index_);
    pause_kernel<<<1, 1, 0, stream_>>>(static_cast<long long>(1e6 * pause_milliseconds));
    CISTRON_CUDA_CHECK(cudaGetLastError());
  }
  void begin() override { mark(); }
  void end(const char* op, const Cost& cost) override {
    mark();
    done_.push_back({.op = op, .cost = cost});
  }
  std::vector<ops::TimedOperation> finish() override {
    CISTRON_CUDA_CHECK(cudaStreamSynchronize(stream_));
    for (size_t i = 0; i < done_.size(); ++i) {
      float milliseconds = 0.0F;
      CISTRON_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, marks_[2 * i].get(), marks_[2 * i + 1].get()));
      done_[i].milliseconds = milliseconds;
    }
    marks_.clear();
    return std::move(done_);
  }

 private:
  void mark() { CISTRON_CUDA_CHECK(cudaEventRecord(marks_.emplace_back().get(), stream_)); }

  int index_;
  cudaStream_t stream_;
  std::deque<Event> marks_;  // before and after each operation
  std::vector<ops::TimedOperation> done_;
};

}  // namespace

std::unique_ptr<ops::DeviceTimer> make_timer(const Context& ctx) { return std::make_unique<EventTimer>(ctx); }

}  // namespace cistron::cuda
