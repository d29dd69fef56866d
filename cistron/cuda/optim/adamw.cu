// Many tensors in one launch, a warp for each unit of 128 elements of a row.
#include "cistron/cuda/optim/adamw_unit.cuh"
#include "cistron/cuda/optim/mxfp8_adamw.h"
#include "cistron/cuda/optim/tensor_list.cuh"

namespace cistron::cuda {
namespace {

using namespace optim;  // NOLINT(google-build-using-namespace)

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / device::kWarp;
constexpr int kUnroll = 2;
constexpr int64_t kUnits = int64_t{kWarps} * kUnroll * 2;  // of a block

using Parameters = TensorList<UpdatedTensor, 260>;

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    adamw_kernel(const __grid_constant__ Parameters parameters, Numbers numbers, const StepState* state) {
  if (state->finite == 0) return;
  const UpdatedTensor& t = parameters.of_block(static_cast<int>(blockIdx.x));
  const Update update(numbers, *state, t.weight_decay);
  const int64_t step = state->step;
  const int64_t begin = (static_cast<int>(blockIdx.x) - t.first_block) * kUnits, end = min(t.elements, begin + kUnits);
  for (int64_t first = begin + threadIdx.x / device::kWarp; first < end; first += kWarps * kUnroll) {
    In<T> in[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
      if (first + i * kWarps < end) in[i] = load_unit<T>(t, Place(t, static_cast<uint32_t>(first + i * kWarps)));
#pragma unroll
    for (int i = 0; i < kUnroll; ++i)
      if (first + i * kWarps < end) update_unit<T>(t, update, Place(t, static_cast<uint32_t>(first + i * kWarps)), in[i], step);
  }
}

template <class T>
void update_all(const Context& ctx, const ops::AdamW& args, DType moments) {
  std::vector<UpdatedTensor> parameters;
  for (const ops::AdamWTensor& t : args.tensors)
    if (!quantized_in_update(t) && t.m.dtype() == moments) parameters.push_back(updated_tensor(t));
  const Numbers numbers{args.beta1, args.beta2, args.eps};
  for_tensor_lists<Parameters>(std::span<const UpdatedTensor>(parameters), kUnits, [&](const Parameters& list, uint32_t blocks) {
    adamw_kernel<T><<<blocks, kThreads, 0, stream(ctx)>>>(list, numbers, args.state);
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace

void adamw(Context& ctx, const ops::AdamW& args) {
  const DeviceGuard guard(ctx);
  update_all<float>(ctx, args, DType::kF32);
  update_all<__nv_bfloat16>(ctx, args, DType::kBF16);
  update_all<uint8_t>(ctx, args, DType::kU8);
  mxfp8_adamw(ctx, args);
  for (const ops::AdamWTensor& t : args.tensors)
    if (t.mx.rows.defined() && !quantized_in_update(t))
      cuda::mxfp8_quantize_weights(ctx, {.w = ops::quantized_master(t), .out = t.mx});
}

}  // namespace cistron::cuda
