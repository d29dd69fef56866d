#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/optim/tensor_list.cuh"
#include "cistron/ops/optimizer.h"

namespace cistron::cuda {
namespace {

using device::Floats;

constexpr int kThreads = 256;
constexpr int kWidth = 4;
constexpr int kUnroll = 2;
constexpr int64_t kPiece = int64_t{kThreads} * kWidth * kUnroll * 2;  // elements of a block

struct Parameter {
  float* master;
  const float* grad;
  float *m, *v;            // other kinds of states begin here: their loads and stores are all that would change
  __nv_bfloat16* working;  // or null
  int64_t elements;
  int32_t first_block;
  float weight_decay;
  bool wide;  // 16-byte loads are possible
};
using Parameters = TensorList<Parameter, 480>;

struct Numbers {
  float beta1, beta2, eps;
};

struct Update {
  Numbers n;
  float clip, lr, correction1, correction2, shrink;

  __device__ Update(const Numbers& numbers, const StepState& state, float weight_decay)
      : n(numbers),
        clip(state.clip_factor),
        lr(state.learning_rate),
        correction1(state.bias_correction1),
        correction2(state.bias_correction2),
        shrink(lr * weight_decay) {}
  __device__ __forceinline__ void operator()(float grad, float& p, float& m, float& v) const {
    const float g = grad * clip;
    m = n.beta1 * m + (1.0F - n.beta1) * g;
    v = n.beta2 * v + (1.0F - n.beta2) * (g * g);
    p -= shrink * p;
    p -= lr * (m / correction1) / (sqrtf(v / correction2) + n.eps);
  }
};

/// Chunks [begin, end), a thread every `kThreads`.
template <int kElements>
__device__ __forceinline__ void update_chunks(const Parameter& t, const Update& update, int64_t begin, int64_t end) {
  struct In {
    Floats<kElements> grad, p, m, v;
  };
  for (int64_t first = begin + threadIdx.x; first < end; first += kThreads * kUnroll) {
    In in[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t at = first + i * kThreads;
      if (at >= end) continue;
      in[i] = {device::load_chunk<kElements>(t.grad, at), device::load_chunk<kElements>(static_cast<const float*>(t.master), at),
               device::load_chunk<kElements>(static_cast<const float*>(t.m), at),
               device::load_chunk<kElements>(static_cast<const float*>(t.v), at)};
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t at = first + i * kThreads;
      if (at >= end) continue;
#pragma unroll
      for (int e = 0; e < kElements; ++e) update(in[i].grad.at[e], in[i].p.at[e], in[i].m.at[e], in[i].v.at[e]);
      device::store_chunk<kElements>(t.master, at, in[i].p);
      device::store_chunk<kElements>(t.m, at, in[i].m);
      device::store_chunk<kElements>(t.v, at, in[i].v);
      if (t.working != nullptr) device::store_chunk<kElements>(t.working, at, in[i].p);
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const __grid_constant__ Parameters parameters, Numbers numbers, const StepState* state) {
  if (state->finite == 0) return;
  const Parameter& t = parameters.of_block(static_cast<int>(blockIdx.x));
  const Update update(numbers, *state, t.weight_decay);
  const int64_t begin = (static_cast<int>(blockIdx.x) - t.first_block) * kPiece, end = min(t.elements, begin + kPiece);
  const int64_t wide_end = t.wide ? end / kWidth * kWidth : begin;
  if (t.wide) update_chunks<kWidth>(t, update, begin / kWidth, wide_end / kWidth);
  update_chunks<1>(t, update, wide_end, end);
}

}  // namespace

void adamw(Context& ctx, const ops::AdamW& args) {
  const DeviceGuard guard(ctx);
  std::vector<Parameter> parameters;
  for (const ops::AdamWTensor& t : args.tensors) {
    bool wide = !t.working.defined() || device::fits_chunks(t.working, 0, kWidth);
    for (const Tensor* tensor : {&t.master, &t.grad, &t.m, &t.v}) wide = wide && device::fits_chunks(*tensor, 0, kWidth);
    parameters.push_back({.master = device::pointer<float>(t.master),
                          .grad = device::pointer<const float>(t.grad),
                          .m = device::pointer<float>(t.m),
                          .v = device::pointer<float>(t.v),
                          .working = t.working.defined() ? device::pointer<__nv_bfloat16>(t.working) : nullptr,
                          .elements = t.master.numel(),
                          .first_block = 0,
                          .weight_decay = t.weight_decay,
                          .wide = wide});
  }
  const Numbers numbers{args.beta1, args.beta2, args.eps};
  for_tensor_lists<Parameters>(std::span<const Parameter>(parameters), kPiece, [&](const Parameters& list, uint32_t blocks) {
    adamw_kernel<<<blocks, kThreads, 0, stream(ctx)>>>(list, numbers, args.state);
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace cistron::cuda
