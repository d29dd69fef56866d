#include "cistron/cuda/moe/swiglu.cuh"

namespace cistron::cuda {
namespace {

using device::Floats;

constexpr int kThreads = 256;
constexpr int kUnroll = 2;

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) forward_kernel(SwigluRows rows, const T* gate_up, T* out) {
  const uint32_t first = blockIdx.x * (kThreads * kUnroll) + threadIdx.x;
  const int32_t end = *rows.end;
  device::Chunk<T, kWidth> gate[kUnroll], up[kUnroll];
  float weight[kUnroll];
  bool wanted[kUnroll], pad[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const uint32_t at = first + i * kThreads;
    const uint32_t row = rows.divisor.quotient(at);
    wanted[i] = at < rows.chunks && static_cast<int32_t>(row) < end;
    pad[i] = wanted[i] && rows.source_row[row] < 0;
    if (!wanted[i] || pad[i]) continue;
    weight[i] = rows.weight[row];
    const int64_t gate_at = int64_t{row} * 2 * rows.row_chunks + rows.divisor.remainder(at, row);
    gate[i] = device::load_chunk<kWidth>(gate_up, gate_at);
    up[i] = device::load_chunk<kWidth>(gate_up, gate_at + rows.row_chunks);
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (!wanted[i]) continue;
    Floats<kWidth> y{};
    if (!pad[i]) {
      const auto g = device::floats(gate[i]), u = device::floats(up[i]);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) y.at[e] = swiglu<T>(g.at[e], u.at[e], weight[i]);
    }
    device::store_chunk<kWidth>(out, first + i * kThreads, y);
  }
}

}  // namespace

void scaled_swiglu_forward(Context& ctx, const ops::ScaledSwigluForward& args) {
  const DeviceGuard guard(ctx);
  const int64_t width = args.out.dim(1);
  device::with_chunks(width, {&args.out, &args.gate_up}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    const SwigluRows rows(args.groups, width / kWidth);
    const uint32_t blocks = device::blocks_for(args.out.numel() / kWidth, kThreads * kUnroll);
    if (blocks == 0) return;
    forward_kernel<T, kWidth>
        <<<blocks, kThreads, 0, stream(ctx)>>>(rows, device::pointer<const T>(args.gate_up), device::pointer<T>(args.out));
    CISTRON_CUDA_CHECK(cudaGetLastError());
  });
}

}  // namespace cistron::cuda
