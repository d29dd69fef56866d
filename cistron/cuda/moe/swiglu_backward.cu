// A group of threads has a row, so that dweight is a sum within it.
#include "cistron/cuda/device/lines.cuh"
#include "cistron/cuda/moe/swiglu.cuh"

namespace cistron::cuda {
namespace {

using device::Chunk, device::Floats;

constexpr int kUnroll = 2;

/// Writes both gradients of a chunk; gives its part of dweight.
template <class T, int kWidth>
__device__ __forceinline__ float backward_chunk(const Chunk<T, kWidth>& dy, const Chunk<T, kWidth>& gate,
                                                const Chunk<T, kWidth>& up, float weight, T* dgate, T* dup, int chunk) {
  Floats<kWidth> dg, du;
  float dweight = 0;
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const SwigluGradients grads =
        swiglu_gradients<T>(device::as_float(dy.at[e]), device::as_float(gate.at[e]), device::as_float(up.at[e]), weight);
    dg.at[e] = grads.dgate;
    du.at[e] = grads.dup;
    dweight += grads.dweight;
  }
  device::store_chunk<kWidth>(dgate, chunk, dg);
  device::store_chunk<kWidth>(dup, chunk, du);
  return dweight;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(device::kLineThreads)
    backward_kernel(SwigluRows rows, const T* dy, const T* gate_up, T* dgate_up, float* dweight, bool accumulate) {
  __shared__ float shared[device::kLineWarps];
  const int row = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  const int n = rows.row_chunks, step = static_cast<int>(blockDim.x), lane = static_cast<int>(threadIdx.x);
  const bool wanted = row < rows.rows && row < *rows.end;
  const bool pad = wanted && rows.source_row[row] < 0;
  const float weight = wanted ? rows.weight[row] : 0.0F;
  const int64_t elements = int64_t{n} * kWidth;  // of a row
  T *dgate = dgate_up + 2 * row * elements, *dup = dgate + elements;
  float sum = 0;
  if (pad) {
    for (int c = lane; c < 2 * n; c += step) device::zero_chunk<kWidth>(dgate, c);
  } else if (wanted) {
    const T *d = dy + row * elements, *gate = gate_up + 2 * row * elements, *up = gate + elements;
    for (int first = lane; first < n; first += kUnroll * step) {
      Chunk<T, kWidth> in[kUnroll][3];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        if (first + i * step >= n) continue;
        in[i][0] = device::load_chunk<kWidth>(d, first + i * step);
        in[i][1] = device::load_chunk<kWidth>(gate, first + i * step);
        in[i][2] = device::load_chunk<kWidth>(up, first + i * step);
      }
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
        if (first + i * step < n)
          sum += backward_chunk<T, kWidth>(in[i][0], in[i][1], in[i][2], weight, dgate, dup, first + i * step);
    }
  }
  sum = device::line_sum(sum, shared);
  if (wanted && lane == 0) dweight[row] = accumulate && !pad ? dweight[row] + sum : sum;
}

}  // namespace

void scaled_swiglu_backward(Context& ctx, const ops::ScaledSwigluBackward& args) {
  const DeviceGuard guard(ctx);
  const int64_t width = args.dy.dim(1);
  device::with_chunks(width, {&args.dy, &args.gate_up, &args.dgate_up}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    const SwigluRows rows(args.groups, width / kWidth);
    const dim3 block = device::line_block(width / kWidth);
    const uint32_t blocks = device::blocks_for(rows.rows, block.y);
    if (blocks == 0) return;
    backward_kernel<T, kWidth><<<blocks, block, 0, stream(ctx)>>>(
        rows, device::pointer<const T>(args.dy), device::pointer<const T>(args.gate_up), device::pointer<T>(args.dgate_up),
        device::pointer<float>(args.dweight), args.accumulate_dweight);
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace cistron::cuda
