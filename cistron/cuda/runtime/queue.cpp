#include "cistron/ops/queue.h"

#include <memory>
#include <type_traits>
#include <vector>

#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {

namespace {

/// A handle of the runtime that is destroyed with its owner.
template <auto kDestroy>
struct Destroyer {
  template <class T>
  void operator()(T* handle) const {
    static_cast<void>(kDestroy(handle));
  }
};
template <class T, auto kDestroy>
using Handle = std::unique_ptr<std::remove_pointer_t<T>, Destroyer<kDestroy>>;

Handle<cudaEvent_t, cudaEventDestroy> make_event() {
  cudaEvent_t event = nullptr;
  CISTRON_CUDA_CHECK(cudaEventCreate(&event));
  return Handle<cudaEvent_t, cudaEventDestroy>(event);
}

class Graph final : public ops::Recording {
 public:
  Graph(cudaGraph_t graph, int device, cudaStream_t stream) : graph_(graph), device_(device), stream_(stream) {
    cudaGraphExec_t executable = nullptr;
    CISTRON_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    executable_.reset(executable);
  }
  void replay() override {
    const DeviceGuard guard(device_);
    CISTRON_CUDA_CHECK(cudaGraphLaunch(executable_.get(), stream_));
  }

  [[nodiscard]] int64_t launches() const override {
    size_t count = 0;
    CISTRON_CUDA_CHECK(cudaGraphGetNodes(graph_.get(), nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    CISTRON_CUDA_CHECK(cudaGraphGetNodes(graph_.get(), nodes.data(), &count));
    int64_t kernels = 0;
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      CISTRON_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
      if (type == cudaGraphNodeTypeKernel) ++kernels;
    }
    return kernels;
  }

 private:
  Handle<cudaGraph_t, cudaGraphDestroy> graph_;
  int device_;
  cudaStream_t stream_;
  Handle<cudaGraphExec_t, cudaGraphExecDestroy> executable_;
};

class Stream final : public ops::Queue {
 public:
  explicit Stream(int device) : device_(device) {
    const DeviceGuard guard(device_);
    CISTRON_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~Stream() override { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] CUstream_st* stream() const override { return stream_; }

  std::unique_ptr<ops::Recording> record(const std::function<void()>& work) override {
    const DeviceGuard guard(device_);
    CISTRON_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      static_cast<void>(cudaGetLastError());
      throw;
    }
    CISTRON_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    return std::make_unique<Graph>(graph, device_, stream_);
  }

  void wait() override {
    const DeviceGuard guard(device_);
    CISTRON_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  double milliseconds(const std::function<void()>& work) override {
    const DeviceGuard guard(device_);
    const auto before = make_event(), after = make_event();
    CISTRON_CUDA_CHECK(cudaEventRecord(before.get(), stream_));
    work();
    CISTRON_CUDA_CHECK(cudaEventRecord(after.get(), stream_));
    CISTRON_CUDA_CHECK(cudaEventSynchronize(after.get()));
    float elapsed = 0.0F;
    CISTRON_CUDA_CHECK(cudaEventElapsedTime(&elapsed, before.get(), after.get()));
    return elapsed;
  }

  bool is_idle() override {
    const DeviceGuard guard(device_);
    const cudaError_t code = cudaStreamQuery(stream_);
    if (code == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // it is recorded as an error, which the next launch's check would find
      return false;
    }
    CISTRON_CUDA_CHECK(code);
    return true;
  }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<ops::Queue> make_queue(const Device& device) { return std::make_unique<Stream>(device.index); }

}  // namespace cistron::cuda
