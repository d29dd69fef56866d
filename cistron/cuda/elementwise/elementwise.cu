#include "cistron/cuda/elementwise/map.cuh"
#include "cistron/ops/elementwise.h"

namespace cistron::cuda {
namespace {

using device::Chunk, device::Floats;

template <class From, class To, int kWidth>
struct CastMap {
  const From* x;
  To* out;
  __device__ Chunk<From, kWidth> load(int64_t i) const { return device::load_chunk<kWidth>(x, i); }
  __device__ void store(int64_t i, const Chunk<From, kWidth>& in) const {
    device::store_chunk<kWidth>(out, i, device::floats(in));
  }
};

template <class T>
struct AddF {
  static __device__ T add(T a, T b) { return T(device::as_float(a) + device::as_float(b)); }
};
template <>
struct AddF<double> {
  static __device__ double add(double a, double b) { return a + b; }
};

template <class T, int kWidth>
struct AddMap {
  struct In {
    Chunk<T, kWidth> a, b;
  };
  const T *a, *b;
  T* out;
  __device__ In load(int64_t i) const { return {device::load_chunk<kWidth>(a, i), device::load_chunk<kWidth>(b, i)}; }
  __device__ void store(int64_t i, const In& in) const {
    Chunk<T, kWidth> sum;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum.at[j] = AddF<T>::add(in.a.at[j], in.b.at[j]);
    reinterpret_cast<Chunk<T, kWidth>*>(out)[i] = sum;
  }
};

template <class T, int kWidth>
struct ClampMap {
  T* x;
  float limit;
  __device__ Chunk<T, kWidth> load(int64_t i) const { return device::load_chunk<kWidth>(x, i); }
  __device__ void store(int64_t i, const Chunk<T, kWidth>& in) const {
    auto v = device::floats(in);
#pragma unroll
    for (float& y : v.at) {  // NaN stays
      y = y > limit ? limit : y;
      y = y < -limit ? -limit : y;
    }
    device::store_chunk<kWidth>(x, i, v);
  }
};

template <class T, class D, int kWidth>
struct ClampBackwardMap {
  struct In {
    Chunk<T, kWidth> clamped;
    Chunk<D, kWidth> dx;
  };
  const T* clamped;
  float limit;  // as clamped's dtype rounds it
  D* dx;
  __device__ In load(int64_t i) const { return {device::load_chunk<kWidth>(clamped, i), device::load_chunk<kWidth>(dx, i)}; }
  __device__ void store(int64_t i, const In& in) const {
    const auto c = device::floats(in.clamped);
    auto d = device::floats(in.dx);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) d.at[j] = c.at[j] >= limit || c.at[j] <= -limit ? 0.0F : d.at[j];
    device::store_chunk<kWidth>(dx, i, d);
  }
};

template <class T, int kWidth>
void launch_add(Context& ctx, const ops::Add& args) {
  launch_map(ctx, args.out.numel() / kWidth,
             AddMap<T, kWidth>{device::pointer<T>(args.a), device::pointer<T>(args.b), device::pointer<T>(args.out)});
}

}  // namespace

void cast(Context& ctx, const ops::Cast& args) {
  const DeviceGuard guard(ctx);
  const int64_t n = args.x.numel();
  const auto to = [&]<class From, int kWidth>(device::ChunkOf<From, kWidth>) {
    const auto* x = device::pointer<From>(args.x);
    if (args.out.dtype() == DType::kF32)
      return launch_map(ctx, n / kWidth, CastMap<From, float, kWidth>{x, device::pointer<float>(args.out)});
    launch_map(ctx, n / kWidth, CastMap<From, __nv_bfloat16, kWidth>{x, device::pointer<__nv_bfloat16>(args.out)});
  };
  // A thread's stores lie side by side with its neighbours': 16 bytes of f32, or of bf16.
  const bool narrows = args.out.dtype() == DType::kBF16;
  const int width = narrows ? 8 : 4;
  const bool wide = device::fits_chunks(args.x, n, width) && device::fits_chunks(args.out, n, width);
  const auto from = [&]<class From>(From) {
    if (!wide) return to(device::ChunkOf<From, 1>{});
    narrows ? to(device::ChunkOf<From, 8>{}) : to(device::ChunkOf<From, 4>{});
  };
  args.x.dtype() == DType::kF32 ? from(float{}) : from(__nv_bfloat16{});
}

void add(Context& ctx, const ops::Add& args) {
  const DeviceGuard guard(ctx);
  if (args.out.dtype() == DType::kF64) return launch_add<double, 1>(ctx, args);
  device::with_chunks(args.out.numel(), {&args.a, &args.b, &args.out}, [&](auto chunk) {
    using C = decltype(chunk);
    launch_add<typename C::Element, C::kElements>(ctx, args);
  });
}

void zero(Context& ctx, const ops::Zero& args) {
  const DeviceGuard guard(ctx);
  if (args.out.bytes() == 0) return;
  CISTRON_CUDA_CHECK(cudaMemsetAsync(args.out.raw(), 0, static_cast<size_t>(args.out.bytes()), stream(ctx)));
}

void clamp(Context& ctx, const ops::Clamp& args) {
  const DeviceGuard guard(ctx);
  device::with_chunks(args.x.numel(), {&args.x}, [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    launch_map(ctx, args.x.numel() / kWidth, ClampMap<T, kWidth>{device::pointer<T>(args.x), args.limit});
  });
}

void clamp_backward(Context& ctx, const ops::ClampBackward& args) {
  const DeviceGuard guard(ctx);
  const int64_t n = args.dx.numel();
  const auto run = [&]<class T, int kWidth>(device::ChunkOf<T, kWidth>) {
    const auto limit = static_cast<float>(T(args.limit));
    const auto* clamped = device::pointer<T>(args.clamped);
    if (args.dx.dtype() == DType::kF32)
      return launch_map(ctx, n / kWidth, ClampBackwardMap<T, float, kWidth>{clamped, limit, device::pointer<float>(args.dx)});
    launch_map(ctx, n / kWidth,
               ClampBackwardMap<T, __nv_bfloat16, kWidth>{clamped, limit, device::pointer<__nv_bfloat16>(args.dx)});
  };
  const bool wide = device::fits_chunks(args.clamped, n, 8) && device::fits_chunks(args.dx, n, 8);
  if (args.clamped.dtype() == DType::kF32) return wide ? run(device::ChunkOf<float, 8>{}) : run(device::ChunkOf<float, 1>{});
  wide ? run(device::ChunkOf<__nv_bfloat16, 8>{}) : run(device::ChunkOf<__nv_bfloat16, 1>{});
}

}  // namespace cistron::cuda
