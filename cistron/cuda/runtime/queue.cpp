#include "cistron/ops/queue.h"

#include <vector>

#include "cistron/cuda/runtime/runtime.h"

namespace cistron::cuda {

namespace {

class Graph final : public ops::Recording {
 public:
  Graph(cudaGraph_t graph, int device, cudaStream_t stream) : graph_(graph), device_(device), stream_(stream) {
    CISTRON_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  ~Graph() override {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay() override {
    const DeviceGuard guard(device_);
    CISTRON_CUDA_CHECK(cudaGraphLaunch(executable_, stream_));
  }

  [[nodiscard]] int64_t launches() const override {
    size_t count = 0;
    CISTRON_CUDA_CHECK(cudaGraphGetNodes(graph_, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    CISTRON_CUDA_CHECK(cudaGraphGetNodes(graph_, nodes.data(), &count));
    int64_t kernels = 0;
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      CISTRON_CUDA_CHECK(cudaGraphNodeGetType(node, &type));
      if (type == cudaGraphNodeTypeKernel) ++kernels;
    }
    return kernels;
  }

 private:
  cudaGraph_t graph_;
  int device_;
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
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
    cudaEvent_t before = nullptr, after = nullptr;
    CISTRON_CUDA_CHECK(cudaEventCreate(&before));
    CISTRON_CUDA_CHECK(cudaEventCreate(&after));
    CISTRON_CUDA_CHECK(cudaEventRecord(before, stream_));
    work();
    CISTRON_CUDA_CHECK(cudaEventRecord(after, stream_));
    CISTRON_CUDA_CHECK(cudaEventSynchronize(after));
    float elapsed = 0.0F;
    CISTRON_CUDA_CHECK(cudaEventElapsedTime(&elapsed, before, after));
    CISTRON_CUDA_CHECK(cudaEventDestroy(before));
    CISTRON_CUDA_CHECK(cudaEventDestroy(after));
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
