#include "tests/cuda/support.h"

#include "cistron/cuda/runtime/runtime.h"

namespace cistron::test {
namespace {

class CardMemory : public MemorySource {
 public:
  std::byte* allocate(int64_t bytes) override {
    void* data = nullptr;
    CISTRON_CUDA_CHECK(cudaMalloc(&data, static_cast<size_t>(bytes)));
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* data, int64_t) override { cudaFree(data); }
};

MemorySource& card_memory() {
  static CardMemory memory;
  return memory;
}

}  // namespace

CudaContext::CudaContext() {
  device = Device{DeviceKind::kCuda};
  arena = Arena::growing("card", device, card_memory());
  precision = Precision::kBF16;
}

std::string CudaContext::unavailable() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  return status == cudaSuccess && count > 0 ? "" : fmt::format("no CUDA card: {}", cudaGetErrorString(status));
}

void replay_captured(int64_t bytes, int times, const std::function<void(Context&)>& run) {
  CudaContext ctx;
  ctx.arena = Arena::planned("captured", ctx.device, card_memory(), bytes);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CISTRON_CUDA_CHECK(cudaDeviceSynchronize());
  CISTRON_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  ctx.stream = stream;
  CISTRON_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  run(ctx);
  CISTRON_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CISTRON_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < times; ++i) CISTRON_CUDA_CHECK(cudaGraphLaunch(executable, stream));
  CISTRON_CUDA_CHECK(cudaStreamSynchronize(stream));
  CISTRON_CUDA_CHECK(cudaGraphExecDestroy(executable));
  CISTRON_CUDA_CHECK(cudaGraphDestroy(graph));
  CISTRON_CUDA_CHECK(cudaStreamDestroy(stream));
}

void copy_to_device(const Tensor& device, const Tensor& host) {
  CISTRON_CUDA_CHECK(cudaMemcpy(device.raw(), host.raw(), static_cast<size_t>(host.bytes()), cudaMemcpyDefault));
}

Tensor to_device(const Context& cuda, const Tensor& host) {
  Tensor out = cuda.empty(host.shape(), host.dtype());
  copy_to_device(out, host);
  return out;
}

Tensor to_host(const Context& cpu, const Tensor& device) {
  CISTRON_CUDA_CHECK(cudaDeviceSynchronize());
  Tensor out = cpu.empty(device.shape(), device.dtype());
  CISTRON_CUDA_CHECK(cudaMemcpy(out.raw(), device.raw(), static_cast<size_t>(device.bytes()), cudaMemcpyDefault));
  return out;
}

void poison_on_device(const Tensor& tensor) {
  CISTRON_CUDA_CHECK(cudaMemset(tensor.raw(), 0xff, static_cast<size_t>(tensor.bytes())));
}

Tensor poisoned_on_device(const Context& cuda, const Shape& shape, DType dtype) {
  Tensor out = cuda.empty(shape, dtype);
  poison_on_device(out);
  return out;
}

ops::Groups OnCard::device(ops::Groups groups) const {
  for (Tensor* t : {&groups.starts, &groups.counts, &groups.source_row, &groups.weight, &groups.token_rows}) *t = device(*t);
  return groups;
}

std::vector<Tensor> OnCard::twice(const std::function<std::vector<Tensor>()>& run) const {
  std::vector<Tensor> first, second;
  for (auto* results : {&first, &second})
    for (const Tensor& result : run()) results->push_back(host(result));
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(same_bits(first[i], second[i])) << "a repeat differs, tensor " << i;
  return first;
}

ops::MxOperand to_device(const Context& cuda, ops::MxOperand host) {
  host.elements = to_device(cuda, host.elements);
  host.scales = to_device(cuda, host.scales);
  return host;
}

ops::MxTensor to_host(const Context& cpu, ops::MxTensor device) {
  for (ops::MxOperand* operand : {&device.rows, &device.columns}) {
    operand->elements = to_host(cpu, operand->elements);
    operand->scales = to_host(cpu, operand->scales);
  }
  return device;
}

void poison_on_device(const ops::MxTensor& tensor) {
  for (const ops::MxOperand* operand : {&tensor.rows, &tensor.columns}) {
    poison_on_device(operand->elements);
    poison_on_device(operand->scales);
  }
}

}  // namespace cistron::test
