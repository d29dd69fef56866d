// Many tensors in one launch, a warp for each unit of 128 elements of a row.
#include "cistron/cuda/optim/adamw_unit.cuh"
#include "cistron/cuda/optim/mxfp8_adamw.h"
#include "cistron/cuda/optim/tensor_list.cuh"

namespace cistron::cuda {
namespace {

using namespace optim;  // NOLINT(google-build-using-namespace)

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / device::kWarp;
constexpr int64_t kUnits = int64_t{kWarps} * 8;  // of a block

using Parameters = TensorList<UpdatedTensor, 260>;

/// A warp's units in turn, the next one on its way while one is computed.
template <class T, bool kWide>
__device__ __forceinline__ void update_units(const UpdatedTensor& t, const Update& update, int64_t step) {
  const auto begin = static_cast<uint32_t>((static_cast<int>(blockIdx.x) - t.first_block) * kUnits);
  const auto end = static_cast<uint32_t>(min(t.elements, begin + kUnits));
  uint32_t unit = begin + threadIdx.x / device::kWarp;
  if (unit >= end) return;
  Place next_place = Place::of_unit(t, unit, kWide);
  In<T> next = load_unit<T>(t, next_place);
#pragma unroll 1
  for (; unit < end; unit += kWarps) {
    const Place place = next_place;
    In<T> in = next;
    if (unit + kWarps < end) {
      next_place = Place::of_unit(t, unit + kWarps, kWide);
      next = load_unit<T>(t, next_place);
    }
    update_unit<T>(t, update, place, in, step);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == sizeof(float) ? 4 : 3)
    adamw_kernel(const __grid_constant__ Parameters parameters, Numbers numbers, const StepState* state) {
  if (state->finite == 0) return;
  const UpdatedTensor& t = parameters.of_block(static_cast<int>(blockIdx.x));
  const Update update(numbers, *state, t.weight_decay);
  t.wide ? update_units<T, true>(t, update, state->step) : update_units<T, false>(t, update, state->step);
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
