#pragma once
// The update of a unit of 128 elements of a row, by a warp, four in each lane: of every array 16, 8 or 4 bytes that lie side by
// side. A unit is also what shares a scale where moments are codes.
#include "cistron/cuda/device/chunk.cuh"
#include "cistron/cuda/device/philox.cuh"
#include "cistron/cuda/device/ptx.cuh"
#include "cistron/ops/optimizer.h"

namespace cistron::cuda::optim {

using device::Chunk;

constexpr int kWidth = ops::kStateBlock / device::kWarp;

using Four = device::Floats<kWidth>;

struct UpdatedTensor {
  void* master;  // f32, or bf16 where there is none
  const float* grad;
  void *m, *v;
  uint8_t *m_scale, *v_scale;
  __nv_bfloat16* working;  // or null
  uint64_t stream;
  int64_t first_row, width;
  int64_t elements;  // units
  uint32_t units_of_row;
  int32_t first_block;
  float weight_decay;
  bool bf16_master;
  bool wide;  // chunks of four are possible
};

struct Numbers {
  float beta1, beta2, eps;
};

struct Update {
  Numbers n;
  float clip, lr, inverse1, inverse2, shrink;  // of the bias corrections: a division costs ten multiplications

  __device__ Update(const Numbers& numbers, const StepState& state, float weight_decay)
      : n(numbers),
        clip(state.clip_factor),
        lr(state.learning_rate),
        inverse1(1.0F / state.bias_correction1),
        inverse2(1.0F / state.bias_correction2),
        shrink(lr * weight_decay) {}
  __device__ __forceinline__ void operator()(float grad, float& p, float& m, float& v) const {
    const float g = grad * clip;
    m = n.beta1 * m + (1.0F - n.beta1) * g;
    v = n.beta2 * v + (1.0F - n.beta2) * (g * g);
    p -= shrink * p;
    p -= lr * (m * inverse1) / (sqrtf(v * inverse2) + n.eps);
  }
};

/// A lane's elements.
struct Place {
  uint32_t unit, row, block;  // of 128 elements of the row
  int64_t at;
  int count;  // up to four; none behind a row's end
  bool wide;

  __device__ Place(const UpdatedTensor& t, uint32_t number) : Place(t, number / t.units_of_row, number % t.units_of_row) {}
  __device__ Place(const UpdatedTensor& t, uint32_t row_, uint32_t block_)
      : unit(row_ * t.units_of_row + block_), row(row_), block(block_), wide(t.wide) {
    at = row * t.width + column();
    count = static_cast<int>(max(int64_t{0}, min(int64_t{kWidth}, t.width - column())));
  }
  [[nodiscard]] __device__ int64_t column() const { return block * ops::kStateBlock + device::lane_index() * kWidth; }
};

template <class T>
__device__ __forceinline__ Chunk<T, kWidth> load(const T* data, const Place& place) {
  Chunk<T, kWidth> out{};
  if (place.wide) {
    if (place.count > 0) out = device::load_chunk<kWidth>(data, place.at / kWidth);
  } else {
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      if (e < place.count) out.at[e] = data[place.at + e];
  }
  return out;
}

template <class T>
__device__ __forceinline__ void store(T* data, const Place& place, const Chunk<T, kWidth>& values) {
  if (place.wide) {
    if (place.count > 0) reinterpret_cast<Chunk<T, kWidth>*>(data)[place.at / kWidth] = values;
  } else {
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      if (e < place.count) data[place.at + e] = values.at[e];
  }
}

using Words = std::array<uint32_t, 4>;

__device__ __forceinline__ Words words_of(const UpdatedTensor& t, const Place& place, int64_t step, uint32_t use) {
  return device::philox(ops::rounding_counter(step, t.first_row + place.row, place.column(), use), ops::rounding_key(t.stream));
}

/// Each rounded up by the half of its word that begins at `shift`.
__device__ __forceinline__ Chunk<__nv_bfloat16, kWidth> to_bf16(const Four& values, const Words& words, int shift) {
  Chunk<__nv_bfloat16, kWidth> out;
#pragma unroll
  for (int e = 0; e < kWidth; ++e)
    out.at[e] = __ushort_as_bfloat16(ops::round_to_bf16(values.at[e], words[e] >> shift & 0xffffU));
  return out;
}

struct FirstMoment {
  static constexpr int kShift = 0;
  static __device__ float value(uint8_t code) { return ops::first_moment_value(code); }
  static __device__ uint8_t code(float scaled, uint32_t random) { return ops::first_moment_code(scaled, random); }
};
struct SecondMoment {
  static constexpr int kShift = 16;
  static __device__ float value(uint8_t code) { return ops::second_moment_value(code); }
  static __device__ uint8_t code(float scaled, uint32_t random) { return ops::second_moment_code(scaled, random); }
};

template <class Moment, class T>
__device__ __forceinline__ Four unpacked(const Chunk<T, kWidth>& values, const uint8_t* scales, const Place& place) {
  if constexpr (sizeof(T) > 1) {
    return device::floats(values);
  } else {
    const float scale = ops::e8m0_to_float(scales[place.unit]);
    Four out;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) out.at[e] = scale * Moment::value(values.at[e]);
    return out;
  }
}

/// The whole warp calls it.
template <class Moment, class T>
__device__ __forceinline__ void pack(T* data, uint8_t* scales, const Place& place, const Four& values, const Words& words) {
  if constexpr (std::is_same_v<T, float>) {
    store(data, place, values);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    store(data, place, to_bf16(values, words, Moment::kShift));
  } else {
    uint32_t most = 0;  // magnitudes compare as their bits
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      if (e < place.count) most = max(most, __float_as_uint(values.at[e]) & 0x7fffffffU);
    const uint8_t scale = ops::state_scale(__uint_as_float(__reduce_max_sync(~0U, most)));
    const float inverse = ops::e8m0_inverse(scale);
    Chunk<uint8_t, kWidth> codes;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) codes.at[e] = Moment::code(values.at[e] * inverse, words[e] >> Moment::kShift & 0xffffU);
    store(data, place, codes);
    if (device::lane_index() == 0) scales[place.unit] = scale;
  }
}

template <class T>
struct In {
  Four grad, p;
  Chunk<T, kWidth> m, v;
};

template <class T>
__device__ __forceinline__ In<T> load_unit(const UpdatedTensor& t, const Place& place) {
  In<T> in;
  in.grad = load(t.grad, place);
  in.p = t.bf16_master ? device::floats(load(static_cast<const __nv_bfloat16*>(t.master), place))
                       : load(static_cast<const float*>(t.master), place);
  in.m = load(static_cast<const T*>(t.m), place);
  in.v = load(static_cast<const T*>(t.v), place);
  return in;
}

template <class T>
__device__ __forceinline__ void update_unit(const UpdatedTensor& t, const Update& update, const Place& place, In<T>& in,
                                            int64_t step) {
  Four m = unpacked<FirstMoment>(in.m, t.m_scale, place), v = unpacked<SecondMoment>(in.v, t.v_scale, place);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) update(in.grad.at[e], in.p.at[e], m.at[e], v.at[e]);
  Words words{};
  if constexpr (sizeof(T) < sizeof(float)) words = words_of(t, place, step, 0);
  pack<FirstMoment>(static_cast<T*>(t.m), t.m_scale, place, m, words);
  pack<SecondMoment>(static_cast<T*>(t.v), t.v_scale, place, v, words);
  if (t.bf16_master) return store(static_cast<__nv_bfloat16*>(t.master), place, to_bf16(in.p, words_of(t, place, step, 1), 0));
  store(static_cast<float*>(t.master), place, in.p);
  if (t.working != nullptr) store(t.working, place, device::rounded<__nv_bfloat16>(in.p));
}

inline UpdatedTensor updated_tensor(const ops::AdamWTensor& t) {
  const ops::StateRows rows = ops::state_rows(t);
  CISTRON_CHECK(rows.units() < int64_t{1} << 31, "[adamw] {} elements are more than one launch takes", t.master.numel());
  bool wide = rows.width % kWidth == 0;
  for (const Tensor* tensor : {&t.master, &t.grad, &t.m, &t.v}) wide = wide && device::fits_chunks(*tensor, 0, kWidth);
  if (t.working.defined()) wide = wide && device::fits_chunks(t.working, 0, kWidth);
  return {.master = t.master.raw(),
          .grad = device::pointer<const float>(t.grad),
          .m = t.m.raw(),
          .v = t.v.raw(),
          .m_scale = device::pointer<uint8_t>(t.m_scale),
          .v_scale = device::pointer<uint8_t>(t.v_scale),
          .working = device::pointer<__nv_bfloat16>(t.working),
          .stream = t.stream,
          .first_row = t.first_row,
          .width = rows.width,
          .elements = rows.units(),
          .units_of_row = narrow<uint32_t>(rows.units_of_row()),
          .first_block = 0,
          .weight_decay = t.weight_decay,
          .bf16_master = t.master.dtype() == DType::kBF16,
          .wide = wide};
}

}  // namespace cistron::cuda::optim
